"""The fields that all events share."""

from __future__ import annotations

from dataclasses import dataclass

from ..ids import NodeId
from ..text import short_repr


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The base of all events: line, nodes and count."""

    where: str = ""  # the user's line
    nodes: tuple[NodeId, ...] = ()  # ids of the nodes that the event created or is about
    times: int = 1  # number of times that the line caused the event

    __repr__ = short_repr
