"""A finished backward as plain values, without tensors and nodes of the program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from ..internals.frames import CodePosition
from ..tracing.nodes import NodeData


class BackwardCall(NamedTuple):
    """The arguments of a backward call."""

    place: CodePosition | None  # the line that called it
    callers: list[CodePosition]  # with those that lead there, inside first
    step: int  # how many steps of optimizers it came after
    retains: bool  # did it retain the graph
    creates: bool  # did it make a graph of the gradients
    accumulates: bool  # into `.grad`; else it was autograd.grad
    loss_scale: Tensor | None  # our own copy, on its device until it is asked for


@dataclass(frozen=True)
class Backward:
    """The nodes that one backward ran; without a backward, those of the forward."""

    position: int  # how many the recording had before this one
    call: BackwardCall
    reading: NodeData
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the variables that it reached
    cut_off: dict[int, int]  # nodes of the leaves that it did not reach, by id() of the variable
    parameters: dict[str, int]  # nodes by the name of the parameter
    notes: dict[int, str]  # by node
    ran: tuple[int, ...] | None  # the nodes that it ran, in its order; None where that is not known
    failed: bool = False  # did it raise

    @cached_property
    def _numbers_ran(self) -> set[int]:
        """Return sequence numbers of the nodes that backward ran; of all nodes, if unknown."""
        if self.ran is None:
            return set(self._by_number)
        return {self.numbers[node] for node in self.ran} - {-1}

    @cached_property
    def _by_number(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self.numbers) if number >= 0}

    def freed(self, number: int) -> bool:
        """Return True if it ran the node with this number and freed its saved tensors."""
        return not self.call.retains and self.has_run(number)

    def has_run(self, number: int) -> bool:
        """Return True if it ran the node with this number, as far as known."""
        return number in self._numbers_ran

    def node(self, number: int) -> int | None:
        """Return the id of the node with this sequence number."""
        return self._by_number.get(number)

    def made(self, numbers: Iterable[int]) -> list[int]:
        """Return the ids of the nodes with these sequence numbers."""
        return [i for i in map(self.node, numbers) if i is not None]
