"""Find losses whose targets belong to other rows of the data than the inputs.

A program that keeps its data in tensors chooses the rows of a batch by an index, X[index] and
Y[index]. If the two indices differ, each prediction is compared with the target of another sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...findings.rules.meaning.batches import UnpairedRows
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, probe
from ...internals.tensors.memory import has_memory
from ..program import Program
from ..program.events import UserLine
from ..program.log import Found, Query, RowsOf
from ..program.rows import TrainingStepRow

_MAX_CHOICES, _MAX_LOSSES = 128, 64  # maximum number of rows in a training step
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


class ChoiceRow(NamedTuple):
    """Rows of a tensor that the program has chosen by an index or a slice."""

    backwards: int  # number of backwards before the choice
    number: int  # sequence number of the next node
    place: CodePosition | None
    rows: int  # number of the tensor of the chosen rows
    memory: int  # number of their storage
    data: int  # number of the storage from which they were chosen
    size: int  # number of rows of this data
    length: int  # number of chosen rows
    indices: Probe | None  # None for a slice
    index_number: int | None = None  # number of the tensor of the indices, if earlier rows name it

    def precedes(self, loss: RowLossRow) -> bool:
        """Return True if the choice belongs to the forward of a loss."""
        return self.backwards == loss.backwards and self.number <= loss.number

    def fits(self, other: ChoiceRow) -> bool:
        """Return True if both choose the same number of rows, from different data of equal size."""
        return self.data != other.data and (self.size, self.length) == (other.size, other.length)

    def is_of(self, loss: RowLossRow) -> bool:
        """Return True if the target of a loss consists of the chosen rows, or of a view of them."""
        # Slices of one tensor share its storage.
        return self.rows == loss.target or loss.memory == self.memory != self.data

    def is_paired(self, other: ChoiceRow) -> bool:
        """Return True if both indices choose the same rows, or rows at a constant distance."""
        one, two = (
            range(self.length) if each.indices is None else each.indices.values or ()
            for each in (self, other)
        )
        return len({a - b for a, b in zip(one, two, strict=False)}) < 2


class RowLossRow(NamedTuple):
    """A loss that has created a node."""

    backwards: int  # number of backwards before the loss
    number: int  # sequence number of the node
    place: CodePosition | None
    target: int | None  # number of the target, if it has one
    memory: int | None  # number of the target's storage, if it has one


def choices_and_losses(event: Called, program: Program) -> Iterator[ChoiceRow | RowLossRow]:
    """Yield the row of a call that chooses rows of data without a gradient, or of a loss."""
    args, kwargs, known, log = event.args, event.kwargs or {}, program.identities, program.log
    if event.func not in _INDEXING:
        target: Any = args[1] if len(args) > 1 else kwargs.get("target")
        if not isinstance(target, Tensor) or not has_memory(target) or event.end == event.start:
            return
        if log.admits(RowLossRow, most=_MAX_LOSSES):
            names = known.find(target), known.find_memory(target)
            place, number = program.place(event.frame), event.end - 1
            yield RowLossRow(program.steps.backwards, number, place, *names)
        return
    if len(args) < 2 or (event.func.__name__ == "index_select" and args[1] != 0):
        return
    rows, data, index = event.result, args[0], args[-1]
    if not isinstance(rows, Tensor) or rows.requires_grad or not isinstance(data, Tensor):
        return
    if not has_memory(rows) or not has_memory(data) or not TensorBase.dim(rows):
        return
    size, length = data.shape[0], rows.shape[0]
    if not _MIN_ROWS <= length <= _MAX_ROWS or length >= size:
        return
    if isinstance(index, Tensor):
        if TensorBase.dim(index) != 1 or index.dtype not in (torch.int64, torch.int32):
            return
    elif not isinstance(index, slice) or index.indices(size)[2] != 1:
        return
    if not log.admits(ChoiceRow, most=_MAX_CHOICES):
        return
    chosen = probe(torch.clone, index) if isinstance(index, Tensor) else None
    if chosen is not None or isinstance(index, slice):
        yield ChoiceRow(
            program.steps.backwards,
            event.start,
            program.place(event.frame),
            known.number(rows),
            known.memory_number(rows),
            known.memory_number(data),
            size,
            length,
            chosen,
            known.find(index) if isinstance(index, Tensor) else None,
        )


@mutable
class _StepCounts:
    """The number of steps in which the rows of a loss differed, and in which they did not."""

    different: int = 0
    equal: int = 0


class ChosenRows(Query):
    """Find targets whose rows were chosen by other indices than the inputs."""

    functions = frozenset((*_INDEXING, *_LOSSES))
    rows_of: ClassVar[RowsOf] = {"on_call_end": choices_and_losses}

    def __init__(self) -> None:
        self._choices: deque[ChoiceRow] = deque(maxlen=_MAX_CHOICES)
        self._losses: list[RowLossRow] = []
        self._counts: dict[CodePosition | None, _StepCounts] = {}

    def on_choice(self, row: ChoiceRow) -> None:
        self._choices.append(row)

    def on_loss(self, row: RowLossRow) -> None:
        self._losses.append(row)

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._losses = []  # the rows of the next batch may have been chosen already

    def events_of_run(self) -> Iterator[Found]:
        losses, self._losses = self._losses, []
        for loss in losses:
            before = [each for each in self._choices if each.precedes(loss)]
            # A part of a permutation is an index, and no input.
            used = {each.index_number for each in before}
            chosen = [each for each in before if each.rows not in used]
            own = next((each for each in chosen if each.is_of(loss)), None)
            if own is not None:
                yield from self._compare(loss, own, [each for each in chosen if own.fits(each)])

    def _compare(
        self, loss: RowLossRow, own: ChoiceRow, others: list[ChoiceRow]
    ) -> Iterator[Found]:
        """Compare the rows of a loss's target with those of each possible input."""
        # Two slices may differ by a number of steps on purpose.
        if not others or any(own.indices is each.indices is None for each in others):
            return
        counts = self._counts.setdefault(loss.place, _StepCounts())
        if any(map(own.is_paired, others)):
            counts.equal += 1
            return
        counts.different += 1
        if counts.different >= _MIN_STEPS and not counts.equal:
            target, inputs = UserLine(own.place), UserLine(others[-1].place)
            latest = {"target": target, "inputs": inputs, "count": counts.different}
            yield Found(UnpairedRows(), loss.place, latest=latest)
