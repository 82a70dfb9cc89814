"""Find wrong reads of a sequence's last step, and encodings of positions along the samples.

The last step of a padded sequence is padding. At the last step of the sequence, the reverse
direction of a bidirectional layer has read a single step.

`x + encoding[:x.size(0)]` adds the first rows of a constant of shape (positions, 1, features). A
rule decides whether the first dimension of x is that of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...findings.rules.meaning.sequences import LastStep, RowEncoding
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.functions import PAD_SEQUENCES, TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import probe
from ...internals.tensors.memory import has_memory
from ..program import Program
from ..program.log import Found, Query, RowsOf

_LAYERS = functions_named("lstm gru rnn_tanh rnn_relu", torch)
_SELECTING = functions_named("__getitem__ select")
_ORDERING = functions_named("index_select")
_MAX_RESULTS = 64  # maximum number of results to remember


class SequenceRow(NamedTuple):
    """A result of a recurrent layer, with an axis of steps."""

    result: int  # number of the tensor
    axis: int  # dimension of the steps
    function: str
    shorter: int = 0  # number of sequences that end before the last step


class OrderedRow(NamedTuple):
    """A tensor of the chosen rows of another one."""

    given: int  # number of the tensor
    result: int
    shape: tuple[int, ...]


class LastStepRow(NamedTuple):
    """A call that takes all features at the last index of an axis."""

    given: int  # number of the tensor
    axes: tuple[int, ...]  # for which axes the call does so
    place: CodePosition | None
    number: int  # sequence number of the call's node


def sequences(event: Called, program: Program) -> Iterable[SequenceRow | OrderedRow | LastStepRow]:
    """Return a row of a result of a recurrent layer, and of its use."""
    func, args, identities = event.func, event.args, program.identities
    if func in _LAYERS:
        # After has_biases: train, bidirectional and, except for a packed sequence, batch_first.
        flags = [arg for arg in args if isinstance(arg, bool)][1:]
        result = event.result[0]
        if len(flags) == 3 and flags[1] and _has_steps(result, int(flags[2])):
            return (SequenceRow(identities.number(result), int(flags[2]), func.__name__),)
        return ()
    if func is PAD_SEQUENCES:
        result, lengths = event.result
        found, axis = probe(_count_shorter, lengths), 1 if args[2] else 0
        shorter = int(found.values[0]) if found is not None and found.values else 0
        if shorter and _has_steps(result, axis):
            row = identities.number(result), axis, "pad_packed_sequence", shorter
            return (SequenceRow(*row),)
        return ()
    given = args[0] if args else None
    known = identities.find(given) if isinstance(given, Tensor) else None
    if known is None or given is None or TensorBase.dim(given) != 3:
        return ()
    if func in _ORDERING:  # as pad_packed_sequence does for sequences that were sorted
        return (OrderedRow(known, identities.number(event.result), tuple(event.result.shape)),)
    axes = tuple([axis for axis in (0, 1) if _is_last(event, axis)])
    fn = event.result.grad_fn if axes else None
    if fn is None:
        return ()
    return (LastStepRow(known, axes, program.place(event.frame), int(fn._sequence_nr())),)


def _has_steps(result: Any, axis: int) -> bool:
    return isinstance(result, Tensor) and TensorBase.dim(result) == 3 and result.shape[axis] > 1


class LastSteps(Query):
    """Find uses of the last step of padded or bidirectional sequences."""

    functions = frozenset((*_LAYERS, *_SELECTING, *_ORDERING, PAD_SEQUENCES))
    rows_of: ClassVar[RowsOf] = {"on_call_end": sequences}

    def __init__(self) -> None:
        self._sequences: dict[int, SequenceRow] = {}  # by number of the result

    def on_sequence(self, row: SequenceRow) -> None:
        self._sequences[row.result] = row
        while len(self._sequences) > _MAX_RESULTS:
            del self._sequences[next(iter(self._sequences))]

    def on_ordered(self, row: OrderedRow) -> None:
        known = self._sequences.get(row.given)
        if known is not None and row.shape[known.axis] > 1:
            self.on_sequence(known._replace(result=row.result))

    def on_last_step(self, row: LastStepRow) -> Iterator[Found]:
        known = self._sequences.get(row.given)
        if known is not None and known.axis in row.axes:
            latest = {"shorter": known.shorter}
            yield Found(LastStep(function=known.function), row.place, (row.number,), latest=latest)


def _count_shorter(lengths: Tensor) -> Tensor:
    return torch.sum(torch.lt(lengths, torch.amax(lengths)))


def _is_last(event: Called, axis: int) -> bool:
    """Return True if a call takes all features at the last index of an axis."""
    args = event.args
    if len(args) < 2:
        return False
    if event.func.__name__ == "select":
        index: Any = (slice(None),) * (args[1] % 3) + args[2:3] if type(args[1]) is int else ()
    else:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
    length = args[0].shape[axis]
    if len(index) <= axis or type(index[axis]) is not int:
        return False
    others = [part for i, part in enumerate(index) if i != axis]
    return index[axis] in (-1, length - 1) and others == [slice(None)] * len(others)


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
