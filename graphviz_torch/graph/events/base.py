"""The fields that all events share."""

from __future__ import annotations

from dataclasses import dataclass

from ..ids import NodeId
from ..text import short_repr


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The base of all events: line, nodes and count."""

    where: str = ""  # source line in the user's code
    nodes: tuple[NodeId, ...] = ()  # ids of the nodes that the event concerns
    times: int = 1  # number of times that the event happened at this line

    __repr__ = short_repr
