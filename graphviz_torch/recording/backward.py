"""Describe a finished backward by plain values, without tensors and autograd nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from ..graph.immutable import NamedTuple, immutable
from ..internals.frames import CodePosition
from ..internals.probes import Probe
from ..tracing.nodes import NodeData


class BackwardCall(NamedTuple):
    """The arguments of a backward call."""

    place: CodePosition | None  # the user's line that called backward
    callers: list[CodePosition]  # the user's call stack, innermost line first
    step: int  # number of optimizer steps before the backward
    retains: bool  # retain_graph=True
    creates: bool  # create_graph=True
    accumulates: bool  # True for backward(), False for autograd.grad
    loss_scale: Probe | None  # factor by which a GradScaler multiplied the loss


@immutable(slots=False)
class Backward:
    """The graph of one backward, or of a forward if no backward ran."""

    position: int  # index in `Recording.graphs`
    call: BackwardCall
    reading: NodeData
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the leaf tensors that backward reached
    cut_off: dict[int, int]  # for leaves that backward did not reach: id() of the leaf -> node id
    parameters: dict[str, int]  # parameter name -> node id
    notes: dict[int, str]  # node id -> reason why the node has no hook
    ran: tuple[int, ...] | None  # ids of the nodes, in the order in which they ran; None: unknown
    failed: bool = False  # True if backward raised

    @cached_property
    def _numbers_ran(self) -> set[int]:
        """Return autograd's sequence numbers of the nodes that ran; of all nodes if unknown."""
        if self.ran is None:
            return set(self._by_number)
        return {self.numbers[node] for node in self.ran} - {-1}

    @cached_property
    def _by_number(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self.numbers) if number >= 0}

    def has_freed(self, number: int) -> bool:
        """Return True if backward ran the node with this sequence number and freed its tensors."""
        return not self.call.retains and self.has_run(number)

    def has_run(self, number: int) -> bool:
        """Return True if backward ran the node with this sequence number, or may have run it."""
        return number in self._numbers_ran

    def node(self, number: int) -> int | None:
        """Return the id of the node with this sequence number; None if there is none."""
        return self._by_number.get(number)

    def node_ids(self, numbers: Iterable[int]) -> list[int]:
        """Return the ids of the nodes with these sequence numbers; unknown numbers are skipped."""
        return [i for i in map(self.node, numbers) if i is not None]
