"""Find constants of which each batch adds the first rows, as an encoding of positions does.

`x + encoding[:x.size(0)]` adds the first rows of a constant of shape (positions, 1, features). A
rule decides whether the first dimension of x is that of the samples.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...findings.rules.meaning.positions import RowEncoding
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory, storage_id, storage_ref
from ..listener import Listener
from ..program import Program

_MIN_CALLS = 2  # number of calls that add the same rows
_MAX_LINES = 64  # maximum number of lines to remember


class Positions(Listener):
    """Listener that reports the first rows of a constant that are added in several calls."""

    needs = ("every_call",)
    functions = frozenset(functions_named("add __add__ __radd__ __iadd__ add_"))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # By line: storage of the constant, a weak reference to it, and the number of calls.
        self._lines: dict[CodePosition | None, tuple[int, Any, int]] = {}

    def on_call_end(self, event: Called) -> None:
        if len(event.args) < 2:
            return
        one, other = event.args[:2]
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return
        x, rows = (one, other) if one.requires_grad else (other, one)
        if rows.requires_grad or not TensorBase.dim(x) == TensorBase.dim(rows) == 3:
            return
        fits = rows.shape[1] == 1 < x.shape[1] and rows.shape[0] == x.shape[0] > 1
        if not fits or rows.shape[2] != x.shape[2] or event.result.grad_fn is None:
            return
        if not has_memory(rows) or TensorBase.storage_offset(rows):
            return
        if rows._base is None or rows._base.shape[0] <= rows.shape[0]:
            return  # all rows, such as a condition of each sample
        place, storage = self.program.place(event.frame), storage_id(rows)
        known, memory, calls = self._lines.get(place, (storage, storage_ref(rows), 0))
        if len(self._lines) >= _MAX_LINES and place not in self._lines:
            return
        same = known == storage and not memory.expired()
        self._lines[place] = storage, storage_ref(rows), calls + 1 if same else 1
        if same and calls + 1 >= _MIN_CALLS:
            number = int(event.result.grad_fn._sequence_nr())
            self.events.note(RowEncoding(), place, [number])
