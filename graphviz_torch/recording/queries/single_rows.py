"""Find steps whose loss depends on a single row of the data of each batch.

The user's own code takes rows of tensors by an index, as in `x[:1]` or `x[0]`. A step is counted if
it takes only one row of at least two tensors. The rule checks that the loss depends on these rows
alone. The tensors of two steps have to be different: a program may train on a single sample on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...findings.rules.meaning.batches import RowOfData
from ...internals.frames import OWN, CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import ResumeRow, StepEndRow

_MIN_ROWS, _MIN_TENSORS, _MIN_STEPS = 4, 2, 2
_MAX_TENSORS = 64  # number of tensors of a step that are remembered
_MAX_NAMED = 1024  # number of tensors of a training step whose names are looked up


class IndexRow(NamedTuple):
    """An index of the user's own code into a tensor."""

    tensor: int  # number of the tensor
    label: str
    rows: int
    number: int | None  # the number of the only row that the index takes; None for several rows
    shape: tuple[int, ...]  # shape of the result
    place: CodePosition | None


def indices(event: Called, program: Program) -> Iterable[IndexRow]:
    """Return a row of an index of the user's own code into a tensor without a gradient."""
    tensor, *more = event.args
    if event.end > event.start or type(tensor) is not Tensor or not torch.is_grad_enabled():
        return ()
    rows = tensor.shape[0] if TensorBase.dim(tensor) else 0
    if rows < _MIN_ROWS or program.stack.files[event.frame.f_code.co_filename] != OWN:
        return ()
    index, number = _row(more[0]) if more else None, program.identities.number(tensor)
    row = IndexRow(number, "", rows, index, tuple(event.result.shape), None)
    # Only the first index into a tensor before a step needs its name.
    key = program.steps.count, number
    if index is not None and program.log.admits(IndexRow, key, most=_MAX_NAMED):
        label = program.label(tensor, user_frame(event.frame))
        row = row._replace(label=label, place=program.place(event.frame))
    return (row,)


class SingleRows(Query):
    """Find losses that depend on one row of the data."""

    functions = frozenset((TensorBase.__getitem__, Tensor.__getitem__))
    rows_of: ClassVar[RowsOf] = {"on_call_end": indices}

    def __init__(self) -> None:
        self._taken: dict[int, IndexRow] = {}  # in this step, by number of the tensor
        self._last: list[IndexRow] = []  # the rows of the last step that was counted
        self._steps = 0

    def on_index(self, row: IndexRow) -> None:
        known = self._taken.get(row.tensor)
        if known is not None and known.number != row.number:
            self._taken[row.tensor] = known._replace(number=None)
        elif known is None and len(self._taken) < _MAX_TENSORS:
            self._taken[row.tensor] = row

    def on_step_end(self, row: StepEndRow) -> Iterator[Found]:
        taken, self._taken = self._taken, {}
        single = [each for each in taken.values() if each.number is not None]
        single.sort(key=lambda each: 0 if each.place is None else each.place[1])
        same = [s for s in single if (s.rows, s.number) == (single[0].rows, single[0].number)]
        before = {each.tensor for each in self._last}
        if len(same) < _MIN_TENSORS or any(each.tensor in before for each in same):
            return
        self._steps, self._last = self._steps + 1, same
        if self._steps >= _MIN_STEPS:
            labels = tuple([each.label for each in same])
            shapes = tuple([str(list(each.shape)) for each in same])
            found = RowOfData(labels=labels, rows=same[0].rows, shapes=shapes)
            yield Found(found, same[0].place, latest={"steps": self._steps})

    def on_resume(self, row: ResumeRow) -> None:
        self._taken = {}


def _row(index: Any) -> int | None:
    """Return the number of the only row that an index takes; None for several rows."""
    index = index[0] if type(index) is tuple and index else index
    if type(index) is int:
        return index
    if type(index) is slice and index.step in (None, 1):
        if index.start in (None, 0) and index.stop == 1:
            return 0
        if index.start == -1 and index.stop is None:
            return -1
    return None
