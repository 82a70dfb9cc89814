"""A backward that is over: plain, it holds none of the program's tensors and nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from ..graph import SavedTensor
from ..internals.tensors.norms import Norms
from ..tracing.nodes import Reading
from .cuts.record import CutRecord
from .failures.node import FailingNode
from .failures.operands import Error
from .gradients.finite import FiniteGradients
from .gradients.recorder import Gradients
from .source_lines import Place
from .steps.history import Retention
from .transfers.transfers import CopyRecord


@dataclass(frozen=True)
class Backward:
    """What one backward ran, what was freed, and what was seen before and during it."""

    position: int  # how many the recording had before this one
    reading: Reading
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the variables that it reached
    cut_off: dict[int, int]  # nodes of the leaves that it did not reach, by id() of the variable
    parameters: dict[str, int]  # nodes by the name of the parameter
    cuts: list[tuple[CutRecord, str, int | None]]  # with the label and the node of an operand
    saved: dict[int, tuple[SavedTensor, ...]] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    place: Place | None = None  # the line that called it
    callers: list[Place] = field(default_factory=list)  # with those that lead there, inside first
    step: int = 0  # how many steps of optimizers it came after
    retains: bool = False  # did it retain the graph
    accumulates: bool = True  # into `.grad`; else it was autograd.grad
    loss_scale: Tensor | None = None  # our own copy, on its device until it is asked for
    retention: Retention | None = None  # graphs of earlier steps
    uncleared: Place | None = None  # where an optimizer used gradients it had used before
    # Of its nodes, and of the parameters before it; on their devices until they are asked for.
    gradients: Gradients | FiniteGradients | None = None
    weights: Norms | None = None
    error: Error | None = None  # that it raised
    failing_node: FailingNode | None = None  # where it ended with that
    computed: list[tuple[str, int, str]] = field(default_factory=list)  # then: name, number, kind

    @cached_property
    def _ran(self) -> set[int]:
        """Sequence numbers of the nodes that backward ran; of all, if that was not recorded."""
        if self.gradients is None:
            return set(self._by_number)
        return {self.numbers[node] for node in self.gradients.order} - {-1}

    @cached_property
    def _by_number(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self.numbers) if number >= 0}

    def freed(self, number: int) -> bool:
        """Did it run the node with this sequence number, and free what it kept."""
        return not self.retains and self.ran(number)

    def ran(self, number: int) -> bool:
        """Did it run the node with this sequence number, as far as is known."""
        return number in self._ran

    def node(self, number: int) -> int | None:
        """Id of the node with this sequence number."""
        return self._by_number.get(number)

    def made(self, numbers: Iterable[int]) -> list[int]:
        """Ids of the nodes with these sequence numbers."""
        return [i for i in map(self.node, numbers) if i is not None]

    def node_of(self, copy: CopyRecord) -> int | None:
        """The node that a copy belongs to: what backward was running, or what it made."""
        if copy.run:
            return copy.node if copy.run == self.position + 1 else None
        return next(iter(self.made(copy.numbers)), None)
