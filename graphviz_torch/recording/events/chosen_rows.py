"""Find losses whose targets belong to other rows of the data than the inputs.

A program that keeps its data in tensors chooses the rows of a batch by an index, X[index] and
Y[index]. If the two indices differ, each prediction is compared with the target of another sample.
The indices are compared on their device, and the results are read at the end of the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...findings.rules.meaning.batches import UnpairedRows
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.weak import Ref
from ..listener import Listener
from ..program import Program
from ..program.events import UserLine

_MAX_CHOICES = 64  # maximum number of choices, and of comparisons, to remember
_MAX_ROWS = 4096  # maximum number of rows of a batch whose indices are compared
_MIN_ROWS = 4  # rows of smaller batches may be in another order by chance
_MIN_STEPS = 2  # number of steps in which the rows must differ
_INDEXING = functions_named("__getitem__ index_select")
_LOSSES = frozenset(
    (
        *(F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
        *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
    )
)


@mutable
class _Choice:
    """Rows of a tensor that the program chose by an index or a slice."""

    rows: Ref  # the chosen rows
    storage: int  # storage of the rows, which views of them share
    data: int  # storage of the tensor from which they were chosen
    size: int  # number of rows of this tensor
    count: int  # number of chosen rows
    index: Tensor | int  # the indices, or the first index of a slice
    place: CodePosition | None


@mutable
class _RowComparison:
    """A comparison of the rows of a loss's target with those of each possible input."""

    place: CodePosition | None  # line of the loss
    paired: list[Probe]  # for each input, 1 if its rows are those of the target or shifted ones
    target: CodePosition | None  # line that chose the rows of the target
    inputs: CodePosition | None  # line that chose the rows of the last of the inputs


@mutable
class _StepCounts:
    """The number of steps in which the rows of a loss differed, and in which they did not."""

    different: int = 0
    equal: int = 0


class ChosenRows(Listener):
    """Listener that reports targets whose rows were chosen by other indices than the inputs."""

    functions = frozenset((*_INDEXING, *_LOSSES))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._choices: list[_Choice] = []  # since the last backward
        self._comparisons: list[_RowComparison] = []
        self._counts: dict[CodePosition | None, _StepCounts] = {}

    def on_call_end(self, event: Called) -> None:
        args, kwargs = event.args, event.kwargs or {}
        if event.func in _INDEXING:
            if len(args) > 1 and len(self._choices) < _MAX_CHOICES:
                self._choose(event, args[0], args[-1])
        elif self._choices:
            self._compare(event, args[1] if len(args) > 1 else kwargs.get("target"))

    def _choose(self, event: Called, data: Any, index: Any) -> None:
        """Remember rows that were chosen from data without a gradient."""
        rows = event.result
        if not isinstance(rows, Tensor) or not isinstance(data, Tensor) or rows.requires_grad:
            return
        if event.func.__name__ == "index_select" and event.args[1] != 0:
            return
        if not has_memory(rows) or not has_memory(data) or not TensorBase.dim(rows):
            return
        size, count = data.shape[0], rows.shape[0]
        if not _MIN_ROWS <= count <= _MAX_ROWS or count >= size:
            return
        if isinstance(index, slice):
            start, _, every = index.indices(size)
            chosen: Tensor | int = start
            if every != 1:
                return
        elif isinstance(index, Tensor) and TensorBase.dim(index) == 1 and has_memory(index):
            if index.dtype not in (torch.int64, torch.int32):
                return
            # A part of a permutation is an index, and no input.
            self._choices = [each for each in self._choices if each.rows() is not index]
            with unobserved():
                chosen = torch.clone(index)
        else:
            return
        place = self.program.place(event.frame)
        ids = storage_id(rows), storage_id(data)
        self._choices.append(_Choice(Ref(rows), *ids, size, count, chosen, place))

    def _compare(self, event: Called, target: Any) -> None:
        """Compare the rows of a loss's target with the other rows that the program chose."""
        if not isinstance(target, Tensor) or len(self._comparisons) >= _MAX_CHOICES:
            return
        own = next((choice for choice in self._choices if _is_of(choice, target)), None)
        if own is None or event.end == event.start:
            return
        others = [
            choice
            for choice in self._choices
            if choice.data != own.data and (choice.size, choice.count) == (own.size, own.count)
        ]
        if not any(isinstance(each.index, Tensor) for each in (own, *others)):
            return  # two slices may differ by a number of steps on purpose
        paired = [_compare_indices(own.index, other.index, own.count) for other in others]
        known = [each for each in paired if each is not None]
        if known and len(known) == len(paired):
            place = self.program.place(event.frame)
            found = _RowComparison(place, known, own.place, others[-1].place)
            self._comparisons.append(found)

    def on_backward_end(self, event: object) -> None:
        self._choices = []

    def on_step_end(self, event: None) -> None:
        self._comparisons = []  # the rows of the next batch may have been chosen already

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        for each in self._comparisons:
            counts = self._counts.setdefault(each.place, _StepCounts())
            rows = fetch(each.paired)
            if any(not row or row[0] for row in rows):
                counts.equal += 1
                continue
            counts.different += 1
            if counts.different >= _MIN_STEPS and not counts.equal:
                self.events.note(
                    UnpairedRows(),
                    each.place,
                    target=UserLine(each.target),
                    inputs=UserLine(each.inputs),
                    count=counts.different,
                )
        self._comparisons = []

    def close(self) -> None:
        self._choices, self._comparisons = [], []


def _is_of(choice: _Choice, target: Tensor) -> bool:
    """Return True if a target consists of the chosen rows, or of a view of them."""
    rows = choice.rows()
    if rows is target:
        return True
    same = rows is not None and has_memory(target) and storage_id(target) == choice.storage
    # Slices of one tensor share its storage.
    return same and choice.storage != choice.data


def _compare_indices(one: Tensor | int, other: Tensor | int, count: int) -> Probe | None:
    """Return 1 if two indices choose the same rows, or rows at a constant distance."""
    if isinstance(one, int):
        one, other = other, one
    if isinstance(one, int):
        return None
    if isinstance(other, int):
        with unobserved():
            other = torch.arange(count, device=one.device)
    return probe(_is_shifted, one, other) if one.device == other.device else None


def _is_shifted(one: Tensor, other: Tensor) -> Tensor:
    difference = torch.sub(one, other)
    return torch.all(torch.eq(difference, torch.select(difference, 0, 0)))
