"""Find steps whose loss depends on a single row of the data of each batch.

The user's own code takes rows of tensors by an index, as in `x[:1]` or `x[0]`. A step is counted if
it takes only one row of at least two tensors. The rule checks that the loss depends on these rows
alone. The tensors of two steps have to be different: a program may train on a single sample on
purpose.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...findings.rules.single_rows import RowOfData
from ...internals.frames import OWN, CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepped
from ...internals.tensors.weak import Ref
from ..listener import Listener, Resumed
from ..program import Program

_MIN_ROWS, _MIN_TENSORS, _MIN_STEPS = 4, 2, 2
_MAX_TENSORS = 64  # number of tensors of a step that are remembered


class _TakenRow(NamedTuple):
    """A row that the program has taken from a tensor."""

    tensor: Ref
    label: str
    rows: int
    number: int | None  # the number of the row; None for several rows
    shape: tuple[int, ...]  # shape of the result
    place: CodePosition | None


class SingleRows(Listener):
    """Listener that reports a loss that depends on one row of the data."""

    needs = ("every_call",)
    functions = frozenset((TensorBase.__getitem__, Tensor.__getitem__))
    before = frozenset[object]()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._taken: dict[int, _TakenRow] = {}  # in this step, by id() of the tensor
        self._last: list[_TakenRow] = []  # the rows of the last step that was counted
        self._steps = 0

    def on_call_end(self, event: Called) -> None:
        tensor, *more = event.args
        if event.end > event.start or type(tensor) is not Tensor or not torch.is_grad_enabled():
            return
        rows = tensor.shape[0] if TensorBase.dim(tensor) else 0
        if rows < _MIN_ROWS or self.program.stack.files[event.frame.f_code.co_filename] != OWN:
            return
        index, known = _row(more[0]) if more else None, self._taken.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            if known.number != index:
                self._taken[id(tensor)] = known._replace(number=None)
        elif len(self._taken) < _MAX_TENSORS:
            label = self.program.label(tensor, user_frame(event.frame)) if index is not None else ""
            place = self.program.place(event.frame) if index is not None else None
            row = Ref(tensor), label, rows, index, tuple(event.result.shape), place
            self._taken[id(tensor)] = _TakenRow(*row)

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Count the step if it has taken a single row of several tensors."""
        taken, self._taken = self._taken, {}
        single = [each for each in taken.values() if each.number is not None]
        single.sort(key=lambda each: 0 if each.place is None else each.place[1])
        same = [s for s in single if (s.rows, s.number) == (single[0].rows, single[0].number)]
        before = {id(each.tensor()) for each in self._last if each.tensor() is not None}
        if len(same) < _MIN_TENSORS or any(id(each.tensor()) in before for each in same):
            return
        self._steps, self._last = self._steps + 1, same
        if self._steps >= _MIN_STEPS:
            labels = tuple([each.label for each in same])
            shapes = tuple([str(list(each.shape)) for each in same])
            found = RowOfData(labels=labels, rows=same[0].rows, shapes=shapes)
            self.events.note(found, same[0].place, steps=self._steps)

    def on_resume(self, event: Resumed) -> None:
        self._taken = {}

    def close(self) -> None:
        self._taken, self._last = {}, []


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
