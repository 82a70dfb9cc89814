"""Find constants of which each batch adds the first rows, as an encoding of positions does.

`x + encoding[:x.size(0)]` adds the first rows of a constant of shape (positions, 1, features). A
rule decides whether the first dimension of x is that of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from torch import Tensor

from ...findings.rules.meaning.sequences import RowEncoding
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory
from ..program import Program
from ..program.log import Found, Query, RowsOf

_MIN_CALLS = 2  # number of calls that add the same rows
_MAX_LINES = 64  # maximum number of lines to remember


class RowEncodingRow(NamedTuple):
    """The first rows of a constant that are added to a batch."""

    place: CodePosition | None
    number: int  # sequence number of the node of the sum
    memory: int  # number of the constant's storage


def row_encodings(event: Called, program: Program) -> Iterable[RowEncodingRow]:
    """Return a row if a call adds the first rows of a constant, one for each sample."""
    one, other = [*event.args[:2], None, None][:2]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return ()
    x, rows = (one, other) if one.requires_grad else (other, one)
    if rows.requires_grad or not TensorBase.dim(x) == TensorBase.dim(rows) == 3:
        return ()
    fits = rows.shape[1] == 1 < x.shape[1] and rows.shape[0] == x.shape[0] > 1
    if not fits or rows.shape[2] != x.shape[2] or event.result.grad_fn is None:
        return ()
    if not has_memory(rows) or TensorBase.storage_offset(rows):
        return ()
    if rows._base is None or rows._base.shape[0] <= rows.shape[0]:
        return ()  # all rows, such as a condition of each sample
    number, memory = event.result.grad_fn._sequence_nr(), program.identities.memory_number(rows)
    return (RowEncodingRow(program.place(event.frame), int(number), memory),)


class Positions(Query):
    """Find the first rows of a constant that are added in several calls."""

    functions = functions_named("add __add__ __radd__ __iadd__ add_")
    needs_constant = True
    rows_of: ClassVar[RowsOf] = {"on_call_end": row_encodings}

    def __init__(self) -> None:
        # By line: storage of the constant, and the number of calls.
        self._lines: dict[CodePosition | None, tuple[int, int]] = {}

    def on_row_encoding(self, row: RowEncodingRow) -> Iterator[Found]:
        memory, calls = self._lines.get(row.place, (row.memory, 0))
        if len(self._lines) >= _MAX_LINES and row.place not in self._lines:
            return
        calls = calls + 1 if memory == row.memory else 1
        self._lines[row.place] = row.memory, calls
        if calls >= _MIN_CALLS:
            yield Found(RowEncoding(), row.place, (row.number,))
