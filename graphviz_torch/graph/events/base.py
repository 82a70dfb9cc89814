"""What all events of a program have."""

from __future__ import annotations

from dataclasses import dataclass

from ..ids import NodeId
from ..text import short_repr


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What all kinds of events have."""

    where: str = ""  # the user's line
    nodes: tuple[NodeId, ...] = ()  # that it made, or is about
    times: int = 1  # how often that line did so

    __repr__ = short_repr
