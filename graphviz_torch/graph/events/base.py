"""The fields that all events share."""

from __future__ import annotations

from ..ids import NodeId
from ..immutable import Immutable, immutable
from ..text import short_repr


@immutable
class Occurrence(Immutable):
    """The base of all events: line, nodes and count."""

    where: str = ""  # source line in the user's code
    nodes: tuple[NodeId, ...] = ()  # ids of the nodes that the event concerns
    times: int = 1  # number of times that the event happened at this line

    __repr__ = short_repr
