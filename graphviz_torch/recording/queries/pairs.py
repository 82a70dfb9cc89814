"""Check calls that combine two tensors: accidental broadcasts, added constants, loss inputs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ...findings.rules.broadcasts import AccidentalBroadcast
from ...findings.rules.meaning.arithmetic import SelfDifference
from ...findings.rules.terms import ConstantTerm, NumberTerm, UnusedSum
from ...findings.rules.unchanging import UnchangingTerm
from ...graph.events import LossCall
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.hooks.modes import unseen_operators
from ...internals.probes import Probe, probe, unobserved
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.pytree import tensors
from ..program import Program
from ..program.events import TensorRecord
from ..program.log import Found, Query, RowsOf
from ..program.rows import GraphRow, TrainingStepRow

_MAX_INTENDED = 256  # maximum number of remembered items of each kind, such as sums
_MIN_SUMS = 2  # a line with fewer unused sums is not reported
_MIN_EQUAL = 3  # a term with the same value in fewer steps is not reported
_ROUNDING = 1e-6  # relative difference of values that count as the same


class ShapeRow(NamedTuple):
    """A tensor that has a dimension of size 1 on purpose, or a vector that reduces a matrix."""

    tensor: int  # number of the tensor
    matrix: int | None = None  # number of the storage of a square matrix whose rows it reduces


class BroadcastRow(NamedTuple):
    """A call that broadcasts its operands, perhaps by accident."""

    operation: str
    place: CodePosition | None
    numbers: tuple[int, ...]  # sequence numbers of the nodes of the results
    operands: tuple[TensorRecord, ...]
    column: int | None = None  # number of the operand of size 1, which may be meant
    reduced: tuple[int, int] | None = None  # number of a vector, and of a matrix's storage


class NumberRow(NamedTuple):
    """A Python number that is added to a loss."""

    place: CodePosition | None
    number: int  # sequence number of the sum's node
    step: int  # number of optimizer steps before
    value: float


class AddendsRow(NamedTuple):
    """The addends of the first sum of two losses on a line."""

    place: CodePosition | None
    operands: tuple[TensorRecord, TensorRecord]


class LossSumRow(NamedTuple):
    """A sum of two scalars that require a gradient."""

    place: CodePosition | None
    numbers: tuple[int, int, int]  # sequence numbers of the addends' nodes, then of the sum's node


class AddendRow(NamedTuple):
    """The value of an addend of such a sum."""

    place: CodePosition | None
    side: int  # 0 for the first addend, 1 for the second
    step: int  # number of optimizer steps before
    term: TensorRecord
    value: Probe


_PairRow = ShapeRow | BroadcastRow | NumberRow | AddendsRow | LossSumRow | AddendRow | Found


def pairs(event: Called, program: Program) -> Iterable[_PairRow]:
    """Return the rows of a call of the program's own code."""
    return () if program.steps.is_own_call(event.frame) else _ROWS[event.func](event, program)


def _shape(event: Called, program: Program) -> Iterable[ShapeRow]:
    """Return a row of the result of `x[:, None]`, unsqueeze, or a reduction such as `sum`."""
    result = event.result
    if type(result) is not Tensor:  # max and min return a pair of values and indices
        result = getattr(result, "values", None)
    if type(result) is not Tensor:
        return ()
    if event.func in KEEPING and TensorBase.dim(result) == 1:
        return _row_reduction(event, program, result)
    if result is not event.result or not _is_meant(event.func, event.args, result):
        return ()
    return (ShapeRow(program.identities.number(result)),)


def _row_reduction(event: Called, program: Program, result: Tensor) -> Iterable[ShapeRow]:
    matrix = event.args[0] if event.args else None
    dim = event.args[1] if len(event.args) > 1 else (event.kwargs or {}).get("dim")
    if dim not in (1, -1) or not isinstance(matrix, Tensor) or TensorBase.dim(matrix) != 2:
        return ()
    if not (_is_plain(matrix) and matrix.shape[0] == matrix.shape[1] > 1 and has_memory(matrix)):
        return ()
    identities = program.identities
    return (ShapeRow(identities.number(result), identities.memory_number(matrix)),)


def _is_meant(func: Any, args: Any, result: Tensor) -> bool:
    """Return True if a call returns a matrix with a dimension of size 1 on purpose."""
    if TensorBase.dim(result) != 2 or not _is_plain(result) or 1 not in result.shape:
        return False
    if func is TensorBase.__getitem__:
        return any(part is None for part in (args[1] if type(args[1]) is tuple else (args[1],)))
    given = args[0] if args else None
    return func in UNSQUEEZE or (isinstance(given, Tensor) and TensorBase.dim(given) == 2)


def _elementwise(event: Called, program: Program) -> Iterable[_PairRow]:
    """Return the rows of an elementwise operation, such as one on shapes (N, 1) and (N,)."""
    one, other = [*event.args[:2], None, None][:2]
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if event.func in _RATIOS and one.requires_grad != other.requires_grad:
            return [*_broadcast(event, program, one, other), *_ratio(event, program, one, other)]
        return _broadcast(event, program, one, other)
    return _number(event, program) if type(other) is float else ()


def _number(event: Called, program: Program) -> Iterable[NumberRow]:
    """Return a row of a Python number that is added to a loss."""
    loss, value = [*event.args[:2], None, None][:2]
    if event.func not in _ADDING_NUMBERS or type(value) is not float or not value:
        return ()
    if type(loss) is not Tensor or TensorBase.dim(loss) or loss.grad_fn is None:
        return ()
    fn = event.result.grad_fn
    number = 0 if fn is None else int(fn._sequence_nr())
    return (NumberRow(program.place(event.frame), number, program.steps.count, value),)


def _ratio(event: Called, program: Program, one: Tensor, other: Tensor) -> Iterable[Found]:
    """Return an event for `x - x.detach()` and `x / x.detach()`, which are always 0 and 1."""
    kept = one if one.requires_grad else other
    same = _is_plain(one) and _is_plain(other) and one.shape == other.shape
    same = same and storage_id(one) == storage_id(other)
    if not same or kept.grad_fn is None or event.result.grad_fn is None:
        return ()
    outer = user_frame(event.frame)
    found = SelfDifference(label=program.label(kept, outer))
    return (Found(found, program.place(outer), (int(event.result.grad_fn._sequence_nr()),)),)


def _broadcast(event: Called, program: Program, one: Tensor, other: Tensor) -> Iterable[_PairRow]:
    dims = TensorBase.dim(one), TensorBase.dim(other)
    if dims[0] == dims[1]:
        return _sum(event, program, one, other) if dims[0] == 0 and event.func in _ADDING else ()
    if dims not in ((2, 1), (1, 2)):
        are_ones = _are_ones(*((one, other) if dims[0] > dims[1] else (other, one)))
        return _note_broadcast(event, program, one, other) if are_ones else ()
    column, row = (one, other) if dims == (2, 1) else (other, one)
    size, identities = row.shape[0], program.identities
    if not (_is_plain(row) and _is_plain(column)) or size < 2:
        return ()
    if tuple(column.shape) == (size, size):
        vector = identities.find(row)
        matrix = identities.find_memory(column) if column.is_cpu and has_memory(column) else None
        if vector is None or matrix is None or _is_symmetric(column):
            return ()
        return _note_broadcast(event, program, one, other, reduced=(vector, matrix))
    if tuple(column.shape) != (size, 1):
        return ()
    if event.func in PAIRED:
        return _note_broadcast(event, program, one, other)
    if _compares_integers(event.func, one, other) or not _by_accident(column, row):
        return ()
    return _note_broadcast(event, program, one, other, column=identities.find(column))


def _are_ones(wide: Tensor, narrow: Tensor) -> bool:
    """Return True for shapes such as (N, 1, 1) and (N, k), whose result is (N, N, k)."""
    dim = TensorBase.dim(narrow)
    if dim < 2 or TensorBase.dim(wide) != dim + 1 or not (_is_plain(wide) and _is_plain(narrow)):
        return False
    parameter = any(isinstance(part, torch.nn.Parameter) for part in (wide, narrow))
    size, ones = wide.shape[0], {*wide.shape[1:]} == {1}
    return ones and 1 < size == narrow.shape[0] and max(narrow.shape[1:]) > 1 and not parameter


def _is_symmetric(matrix: Tensor) -> bool:
    with unobserved():
        return torch.equal(matrix, torch.t(matrix))


def _compares_integers(func: Any, *operands: Tensor) -> bool:
    """Return True for a mask such as `arange(N) < lengths`, with lengths of shape (N, 1)."""
    return func in _ORDERING and not any(part.dtype.is_floating_point for part in operands)


def _by_accident(column: Tensor, row: Tensor) -> bool:
    if any(isinstance(part, torch.nn.Parameter) for part in (column, row)):
        return False
    made = column.grad_fn.name() if column.grad_fn is not None else ""
    if made.startswith(("Unsqueeze", "Expand")):
        return False
    return storage_id(column) != storage_id(row)


def _sum(event: Called, program: Program, one: Tensor, other: Tensor) -> Iterable[_PairRow]:
    """Return the rows of a sum of two scalars. One of them may be a constant that is not 0."""
    result = event.result
    if result.grad_fn is None:
        return ()
    outer = user_frame(event.frame)
    if one.requires_grad and other.requires_grad:
        return _loss_sum(event, program, (one, other))
    constant = other if one.requires_grad else one
    with unseen_operators():
        added = constant.is_cpu and has_memory(constant) and bool(TensorBase.item(constant))
    if not added:
        return ()
    number = TensorRecord.create(constant, program.label(constant, outer))
    numbers = (int(result.grad_fn._sequence_nr()),)
    return (Found(ConstantTerm(), program.place(outer), numbers, latest={"constant": number}),)


def _loss_sum(event: Called, program: Program, terms: tuple[Tensor, Tensor]) -> Iterator[_PairRow]:
    fns = [tensor.grad_fn for tensor in (*terms, event.result)]
    one, other, result = [-1 if fn is None else int(fn._sequence_nr()) for fn in fns]
    if one < 0 or other < 0:
        return
    place, log, step = program.place(event.frame), program.log, program.steps.count
    if log.admits(AddendsRow, place, most=_MAX_INTENDED, in_run=True):
        labels = program.labels(terms, user_frame(event.frame))
        first, second = map(TensorRecord.create, terms, labels)
        yield AddendsRow(place, (first, second))
    yield LossSumRow(place, (one, other, result))
    for i, term in enumerate(terms):
        key = place, i, step
        value = probe(torch.clone, term) if log.admits(AddendRow, key, most=_MAX_INTENDED) else None
        if value is not None:
            yield AddendRow(place, i, step, TensorRecord.create(term), value)


def _note_broadcast(
    event: Called,
    program: Program,
    one: Tensor,
    other: Tensor,
    column: int | None = None,
    reduced: tuple[int, int] | None = None,
) -> Iterable[BroadcastRow]:
    outer = user_frame(event.frame)
    operands = tuple(map(TensorRecord.create, (one, other), program.labels((one, other), outer)))
    name = getattr(event.func, "__name__", "").strip("_")
    place, numbers = program.place(outer), _numbers(event.result)
    return (BroadcastRow(name, place, numbers, operands, column, reduced),)


def _numbers(result: Any) -> tuple[int, ...]:
    """Return the sequence numbers of the nodes of results."""
    fns = [tensor.grad_fn for tensor in tensors(result)]
    return tuple([int(fn._sequence_nr()) for fn in fns if fn is not None])


def _loss(event: Called, program: Program) -> Iterator[_PairRow]:
    """Yield the inputs of a loss function, and a row if it broadcasts them."""
    func, kwargs = event.func, event.kwargs
    given = list(event.args[:2])
    given += [kwargs[key] for key in ("input", "target") if kwargs and key in kwargs]
    if len(given) < 2 or not all(isinstance(part, Tensor) for part in given):
        return
    if func in PAIRED:
        yield from _broadcast(event, program, given[0], given[1])
        if _is_column_beside_matrix(*given[:2]):
            yield from _note_broadcast(event, program, given[0], given[1])
    if func in JUDGED:
        outer = user_frame(event.frame)
        operands = tuple(map(TensorRecord.create, given, program.labels(given, outer)))
        call, place = LossCall(function=func.__name__), program.place(outer)
        yield Found(call, place, _numbers(event.result), latest={"operands": operands})


def _is_column_beside_matrix(one: Tensor, other: Tensor) -> bool:
    """Return True for shapes (N, 1) and (N, k): the loss compares each value with k values.

    Args:
        one: the tensor that may have the shape (N, 1).
        other: the tensor that may have the shape (N, k).
    """
    if not (
        TensorBase.dim(one) == TensorBase.dim(other) == 2 and _is_plain(one) and _is_plain(other)
    ):
        return False
    (rows, columns), (others, many) = one.shape, other.shape
    return rows == others > 1 and columns != many and 1 in (columns, many)


def _is_plain(tensor: Tensor) -> bool:
    """Return True if all sizes are ints.

    A comparison with a symbolic size would add a guard to the user's compiled graph.
    """
    return all(type(size) is int for size in tensor.shape)


UNSQUEEZE = functions_named("unsqueeze")
KEEPING = functions_named("sum mean max min amax amin norm logsumexp prod std var any all")
ARITHMETIC = functions_named(
    "sub add mul div eq ne gt lt ge le minimum maximum __sub__ __rsub__ __add__ __radd__ __mul__"
    " __rmul__ __truediv__ __rtruediv__ __eq__ __ne__ __gt__ __lt__ __ge__ __le__",
)
# Operations that always return 0 or 1 for a tensor and its detached copy.
_RATIOS = functions_named("sub div __sub__ __rsub__ __truediv__ __rtruediv__")
_ORDERING = functions_named("gt lt ge le __gt__ __lt__ __ge__ __le__")
_ADDING = functions_named("add __add__ __radd__")
_IN_PLACE = functions_named("__iadd__ __isub__ add_ sub_", Tensor, TensorBase)
_ADDING_NUMBERS = _ADDING | _IN_PLACE | functions_named("sub __sub__ __rsub__")
# Elementwise losses, which broadcast their inputs.
PAIRED = functions_named("mse_loss l1_loss smooth_l1_loss huber_loss", functional)
# Losses whose inputs are recorded. Rules check which operations computed these inputs.
JUDGED = functions_named(
    "kl_div cross_entropy binary_cross_entropy binary_cross_entropy_with_logits", functional
)
# Function -> the function that returns the rows of its calls.
_ROWS: dict[Any, Callable[[Called, Program], Iterable[_PairRow]]] = {
    TensorBase.__getitem__: _shape,
    **dict.fromkeys(UNSQUEEZE | KEEPING, _shape),
    **dict.fromkeys(ARITHMETIC, _elementwise),
    **dict.fromkeys(PAIRED | JUDGED, _loss),
    **dict.fromkeys(_IN_PLACE, _number),
}


@mutable
class _Sum:
    """A sum of two losses in this step."""

    row: LossSumRow
    # For each node of `row.numbers`, True if it was in the graph of a backward.
    ran: list[bool] = field(default_factory=lambda: [False] * 3)


@mutable
class _TermValues:
    """The values of one addend of a sum of loss terms, in different training steps."""

    values: list[float] = field(default_factory=list)
    step: int = -1  # number of optimizer steps before the last value
    term: TensorRecord | None = None
    differ: bool = False


class PairedTensors(Query):
    """Find broadcasts of (N, 1) with (N,), constants in sums, unused sums, and loss inputs."""

    functions: ClassVar[frozenset[Any]] = frozenset(_ROWS)
    rows_of: ClassVar[RowsOf] = {"on_call_end": pairs}

    def __init__(self) -> None:
        # Number of a tensor that has a dimension of size 1 on purpose, or that reduces the rows of
        # a square matrix -> number of the matrix's storage; else None.
        self._shapes: dict[int, int | None] = {}
        self._sums: deque[_Sum] = deque(maxlen=_MAX_INTENDED)  # sums of two losses in this step
        # Line that adds two losses -> the addends of the line's first sum.
        self._addends: dict[CodePosition | None, tuple[TensorRecord, TensorRecord]] = {}
        # Line -> number of its sums that no backward used; -1 if a backward used one.
        self._unused: dict[CodePosition | None, int] = {}
        # Line that adds a number to a loss -> number of the step, and the number that was added.
        self._numbers: dict[CodePosition | None, tuple[int, float]] = {}
        # The values of addends, by line and index.
        self._values: dict[tuple[CodePosition | None, int], _TermValues] = {}

    def on_shape(self, row: ShapeRow) -> None:
        self._shapes[row.tensor] = row.matrix
        while len(self._shapes) > 2 * _MAX_INTENDED:
            del self._shapes[next(iter(self._shapes))]

    def on_broadcast(self, row: BroadcastRow) -> Iterator[Found]:
        if row.column is not None and self._shapes.get(row.column, -1) is None:
            return
        if row.reduced is not None and self._shapes.get(row.reduced[0]) != row.reduced[1]:
            return
        found, latest = AccidentalBroadcast(operation=row.operation), {"operands": row.operands}
        yield Found(found, row.place, row.numbers, latest=latest)

    def on_number(self, row: NumberRow) -> Iterator[Found]:
        if row.place not in self._numbers and len(self._numbers) >= _MAX_INTENDED:
            return
        step, value = self._numbers.setdefault(row.place, (row.step, row.value))
        if step != row.step and value != row.value and row.number:
            latest = {"before": value, "value": row.value}
            yield Found(NumberTerm(), row.place, (row.number,), latest=latest)

    def on_addends(self, row: AddendsRow) -> None:
        self._addends[row.place] = row.operands

    def on_loss_sum(self, row: LossSumRow) -> None:
        self._sums.append(_Sum(row))

    def on_graph(self, row: GraphRow) -> None:
        numbers = {*row.numbers} if self._sums else set()
        for each in self._sums:
            each.ran = [a or b in numbers for a, b in zip(each.ran, each.row.numbers, strict=True)]

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._sums.clear()

    def on_addend(self, row: AddendRow) -> None:
        key = row.place, row.side
        if key not in self._values and len(self._values) >= _MAX_INTENDED:
            return
        known = self._values.setdefault(key, _TermValues())
        if known.differ or known.step == row.step or not row.value.values:
            return
        known.values, known.step = [*known.values, row.value.values[0]], row.step
        known.differ = not math.isclose(known.values[-1], known.values[0], rel_tol=_ROUNDING)
        label = self._addends[row.place][row.side].label if row.place in self._addends else ""
        known.term = row.term._replace(label=label)

    def events_of_run(self) -> Iterator[Found]:
        for each in self._sums:
            place, addends = each.row.place, self._addends.get(each.row.place)
            if each.ran[2]:
                self._unused[place] = -1  # a backward used a sum of this line
            elif addends is not None and any(each.ran) and not all(each.ran[:2]):
                yield from self._unused_sum(place, addends[:: 1 if each.ran[0] else -1])
        self._sums.clear()
        for (place, _), known in self._values.items():
            values = known.values
            if not known.differ and len(values) >= _MIN_EQUAL and values[0]:
                latest = {"term": known.term, "value": values[0], "count": len(values)}
                yield Found(UnchangingTerm(), place, latest=latest)
                del values[_MIN_EQUAL:]

    def _unused_sum(
        self, place: CodePosition | None, operands: Sequence[TensorRecord]
    ) -> Iterator[Found]:
        """Yield a line that sums losses, if backward used the first of the operands, but no sum."""
        count = self._unused.get(place, 0)
        if count >= 0:
            self._unused[place] = count = count + 1
            if count >= _MIN_SUMS:
                used, unused = operands
                yield Found(UnusedSum(), place, latest={"used": used, "unused": unused})
