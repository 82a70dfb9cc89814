"""Check calls that combine two tensors: accidental broadcasts, added constants, loss inputs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...findings.rules.losses import AccidentalBroadcast
from ...findings.rules.meaning.arithmetic import SelfDifference
from ...findings.rules.terms import ConstantTerm, NumberTerm, UnusedSum
from ...findings.rules.unchanging import UnchangingTerm
from ...graph import Graph
from ...graph.events import LossCall
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.hooks.modes import unseen_operators
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import has_memory, storage_id, storage_ref
from ...internals.tensors.pytree import tensors
from ...internals.tensors.weak import Ref
from ..backward import Backward
from ..listener import BackwardBegan, Listener
from ..program import Program
from ..program.events import TensorRecord

_MAX_INTENDED = 256  # maximum number of remembered items of each kind, such as sums
_MIN_SUMS = 2  # a line with fewer unused sums is not reported
_MIN_EQUAL = 3  # a term with the same value in fewer steps is not reported
_ROUNDING = 1e-6  # relative difference of values that count as the same


@mutable
class _Sum:
    """A sum of two scalars that require a gradient."""

    place: CodePosition | None
    numbers: list[int]  # sequence numbers of the addends' nodes, then of the sum's node
    # For each node of `numbers`, True if it was in the graph of a backward.
    ran: list[bool] = field(default_factory=lambda: [False] * 3)


@mutable
class _TermValues:
    """The values of one addend of a sum of loss terms, in different training steps."""

    values: list[Probe] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # number of optimizer steps before each
    term: TensorRecord | None = None
    differ: bool = False


class PairedTensors(Listener):
    """Listener that reports broadcasts of (N, 1) with (N,), constants in sums, and loss inputs."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.functions = frozenset(_CHECKS)
        # Tensors that have a dimension of size 1 on purpose, by id().
        self._intended_shapes: dict[int, Ref] = {}
        # id() of a vector that reduces the rows of a square matrix -> the vector, and the storage
        # of the matrix.
        self._row_reductions: dict[int, tuple[Ref, Any, int]] = {}
        self._sums: deque[_Sum] = deque(maxlen=_MAX_INTENDED)  # sums of two losses in this step
        # Line that adds two losses -> the addends of the line's first sum.
        self._addends: dict[CodePosition | None, tuple[TensorRecord, TensorRecord]] = {}
        # Line -> number of its sums that no backward used; -1 if a backward used one.
        self._unused: dict[CodePosition | None, int] = {}
        # Line that adds a number to a loss -> number of the step, and the number that was added.
        self._numbers: dict[CodePosition | None, tuple[int, float]] = {}
        # By line and position of an addend: its values, as yet on their device, and its record.
        self._values: dict[tuple[CodePosition | None, int], _TermValues] = {}

    def on_call_end(self, event: Called) -> None:
        if not self.program.steps.is_own_call(event.frame):
            _CHECKS[event.func](self, event)

    def shape(self, event: Called) -> None:
        """Remember the result of `x[:, None]`, unsqueeze, or a reduction such as `sum`.

        Such a result has a dimension of size 1 on purpose, or is a vector that reduces a matrix.
        """
        result = event.result
        if type(result) is not Tensor:  # max and min return a pair of values and indices
            result = getattr(result, "values", None)
        if type(result) is not Tensor:
            return
        if event.func in KEEPING and TensorBase.dim(result) == 1:
            self._remember_row_reduction(event, result)
        elif result is event.result:
            self._shape(event.func, event.args, result)

    def _remember_row_reduction(self, event: Called, result: Tensor) -> None:
        matrix = event.args[0] if event.args else None
        dim = event.args[1] if len(event.args) > 1 else (event.kwargs or {}).get("dim")
        if dim not in (1, -1) or not isinstance(matrix, Tensor) or TensorBase.dim(matrix) != 2:
            return
        if _is_plain(matrix) and matrix.shape[0] == matrix.shape[1] > 1 and has_memory(matrix):
            known = Ref(result), storage_ref(matrix), storage_id(matrix)
            self._row_reductions[id(result)] = known
            while len(self._row_reductions) > _MAX_INTENDED:
                del self._row_reductions[next(iter(self._row_reductions))]

    def _shape(self, func: Any, args: Any, result: Tensor) -> None:
        if TensorBase.dim(result) != 2 or not _is_plain(result) or 1 not in result.shape:
            return
        if func is TensorBase.__getitem__:
            index = args[1] if type(args[1]) is tuple else (args[1],)
            meant = any(part is None for part in index)
        elif func in UNSQUEEZE:
            meant = True
        else:
            meant = bool(args) and isinstance(args[0], Tensor) and TensorBase.dim(args[0]) == 2
        if meant:
            self._intended_shapes[id(result)] = Ref(result)
            while len(self._intended_shapes) > _MAX_INTENDED:
                del self._intended_shapes[next(iter(self._intended_shapes))]

    def elementwise(self, event: Called) -> None:
        """Check the shapes of an elementwise operation on two tensors, such as (N, 1) and (N,)."""
        if len(event.args) > 1:
            one, other = event.args[:2]
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                self._broadcast(event.func, one, other, event.result, event.frame)
                if event.func in _RATIOS and one.requires_grad != other.requires_grad:
                    self._check_ratio(one, other, event)
            elif type(other) is float:
                self.number(event)

    def number(self, event: Called) -> None:
        """Report a Python number that is added to a loss and differs between steps."""
        loss, value = [*event.args[:2], None, None][:2]
        if event.func not in _ADDING_NUMBERS or type(value) is not float or not value:
            return
        if type(loss) is not Tensor or TensorBase.dim(loss) or loss.grad_fn is None:
            return
        place, step = self.program.place(event.frame), self.program.steps.count
        if place not in self._numbers and len(self._numbers) >= _MAX_INTENDED:
            return
        before = self._numbers.setdefault(place, (step, value))
        if before[0] != step and before[1] != value and event.result.grad_fn is not None:
            numbers = [int(event.result.grad_fn._sequence_nr())]
            self.events.note(NumberTerm(), place, numbers, before=before[1], value=value)

    def _check_ratio(self, one: Tensor, other: Tensor, event: Called) -> None:
        """Report `x - x.detach()` and `x / x.detach()`, which are always 0 and 1.

        Args:
            one: the first operand of a difference or quotient.
            other: the second operand.
            event: the call.
        """
        kept = one if one.requires_grad else other
        same = _is_plain(one) and _is_plain(other) and one.shape == other.shape
        same = same and storage_id(one) == storage_id(other)
        if same and kept.grad_fn is not None and event.result.grad_fn is not None:
            outer = user_frame(event.frame)
            self.events.note(
                SelfDifference(label=self.program.label(kept, outer)),
                self.program.place(outer),
                [int(event.result.grad_fn._sequence_nr())],
            )

    def _broadcast(
        self, func: Any, one: Tensor, other: Tensor, result: Any, frame: FrameType
    ) -> None:
        dims = TensorBase.dim(one), TensorBase.dim(other)
        if dims == (0, 0) and func in _ADDING:
            self._check_addends(one, other, result, frame)
            return
        if dims == (2, 1):
            column, row = one, other
        elif dims == (1, 2):
            column, row = other, one
        elif dims[0] != dims[1]:
            self._check_ones(func, one, other, result, frame)
            return
        else:
            return
        size = row.shape[0]
        if not (_is_plain(row) and _is_plain(column)) or size < 2:
            return
        if tuple(column.shape) == (size, size):
            if self._is_reduction_of(row, column):
                self._note_broadcast(func, one, other, result, frame)
            return
        if tuple(column.shape) != (size, 1):
            return
        if func not in PAIRED and not self._by_accident(column, row):
            return
        self._note_broadcast(func, one, other, result, frame)

    def _check_ones(
        self, func: Any, one: Tensor, other: Tensor, result: Any, frame: FrameType
    ) -> None:
        """Report operands with shapes such as (N, 1, 1) and (N, k), whose result is (N, N, k).

        Args:
            func: the called function.
            one: the first operand.
            other: the second operand.
            result: the result of the call.
            frame: the frame of the call.
        """
        wide, narrow = (one, other) if TensorBase.dim(one) > TensorBase.dim(other) else (other, one)
        dim = TensorBase.dim(narrow)
        if dim < 2 or TensorBase.dim(wide) != dim + 1 or not (_is_plain(one) and _is_plain(other)):
            return
        parameter = any(isinstance(part, torch.nn.Parameter) for part in (one, other))
        size, ones = wide.shape[0], {*wide.shape[1:]} == {1}
        if ones and 1 < size == narrow.shape[0] and max(narrow.shape[1:]) > 1 and not parameter:
            self._note_broadcast(func, one, other, result, frame)

    def _is_reduction_of(self, row: Tensor, matrix: Tensor) -> bool:
        """Return True if `row` reduces each row of `matrix`, and `matrix` is not symmetric."""
        known = self._row_reductions.get(id(row))
        if known is None or known[0]() is not row or known[1].expired():
            return False
        if known[2] != storage_id(matrix) or not (matrix.is_cpu and has_memory(matrix)):
            return False
        with unobserved():
            return not torch.equal(matrix, torch.t(matrix))

    def _check_addends(self, one: Tensor, other: Tensor, result: Any, frame: FrameType) -> None:
        """Report a constant in a sum of scalars, except the initial 0 of an accumulated loss.

        Args:
            one: the first operand of an addition.
            other: the second operand.
            result: the sum.
            frame: the frame of the call.
        """
        if result.grad_fn is None:
            return
        if one.requires_grad and other.requires_grad:
            self._remember_sum(one, other, result, frame)
            return
        constant = other if one.requires_grad else one
        with unseen_operators():
            added = constant.is_cpu and has_memory(constant) and bool(TensorBase.item(constant))
        if added:
            outer = user_frame(frame)
            number = TensorRecord.create(constant, self.program.label(constant, outer))
            numbers = [int(result.grad_fn._sequence_nr())]
            place = self.program.place(outer)
            self.events.note(ConstantTerm(), place, numbers, constant=number)

    def _remember_sum(self, one: Tensor, other: Tensor, result: Tensor, frame: FrameType) -> None:
        if one.grad_fn is None or other.grad_fn is None:
            return
        place = self.program.place(frame)
        operands = self._addends.get(place)
        if operands is None:
            labels = self.program.labels((one, other), user_frame(frame))
            first, second = map(TensorRecord.create, (one, other), labels)
            operands = self._addends[place] = first, second
            while len(self._addends) > _MAX_INTENDED:
                del self._addends[next(iter(self._addends))]
        for i, term in enumerate((one, other)):
            self._compare_value(place, i, term, operands[i].label)
        numbers = [int(t.grad_fn._sequence_nr()) for t in (one, other, result)]  # type: ignore[union-attr]
        self._sums.append(_Sum(place, numbers))

    def _compare_value(self, place: CodePosition | None, i: int, term: Tensor, label: str) -> None:
        """Keep the value of an addend, for a comparison with other training steps.

        Args:
            place: the source line of the sum.
            i: index of the addend, 0 or 1.
            term: the addend.
            label: the user's name for the addend.
        """
        known = self._values.get((place, i))
        if known is None:
            if len(self._values) >= _MAX_INTENDED:
                return
            known = self._values[place, i] = _TermValues()
        if known.differ or (known.steps and known.steps[-1] == self.program.steps.count):
            return
        value = probe(torch.clone, term)
        if value is None:
            known.differ = True
            return
        known.steps.append(self.program.steps.count)
        known.values.append(value)
        known.term = TensorRecord.create(term, label)

    def on_backward_start(self, event: BackwardBegan) -> None:
        numbers = event.live.numbers
        for each in self._sums:
            for i, number in enumerate(each.numbers):
                each.ran[i] = each.ran[i] or number in numbers

    def on_step_end(self, event: None) -> None:
        self._sums.clear()

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        for each in self._sums:
            if each.ran[2]:
                self._unused[each.place] = -1  # a backward used a sum of this line
            elif any(each.ran) and not all(each.ran[:2]):
                self._check_unused(each)
        self._sums.clear()
        for (place, _), known in self._values.items():
            self._check_values(place, known)

    def _check_values(self, place: CodePosition | None, known: _TermValues) -> None:
        """Report an addend that had the same value in several training steps.

        Args:
            place: the source line of the sum.
            known: the values of the addend so far.
        """
        values = [row[0] for row in fetch(known.values) if row]
        known.differ = known.differ or any(
            not math.isclose(value, values[0], rel_tol=_ROUNDING) for value in values
        )
        if known.differ:
            known.values, known.term = [], None
        elif len(values) >= _MIN_EQUAL and values[0]:
            self.events.note(
                UnchangingTerm(), place, term=known.term, value=values[0], count=len(values)
            )
            del known.values[_MIN_EQUAL:], known.steps[:-1]

    def _check_unused(self, each: _Sum) -> None:
        """Report a line that sums losses, if backward used one addend but never the sum."""
        count = self._unused.get(each.place, 0)
        if count < 0 or each.place not in self._addends:
            return
        self._unused[each.place] = count = count + 1
        if count >= _MIN_SUMS:
            used, unused = self._addends[each.place][:: 1 if each.ran[0] else -1]
            self.events.note(UnusedSum(), each.place, used=used, unused=unused)

    def _note_broadcast(
        self, func: Any, one: Tensor, other: Tensor, result: Any, frame: FrameType
    ) -> None:
        outer = user_frame(frame)
        labels = self.program.labels((one, other), outer)
        operands = tuple(map(TensorRecord.create, (one, other), labels))
        made = [r for r in tensors(result) if r.grad_fn is not None]
        numbers = [int(tensor.grad_fn._sequence_nr()) for tensor in made]  # type: ignore[union-attr]
        name = getattr(func, "__name__", "").strip("_")
        place = self.program.place(outer)
        self.events.note(AccidentalBroadcast(operation=name), place, numbers, operands=operands)

    def _by_accident(self, column: Tensor, row: Tensor) -> bool:
        known = self._intended_shapes.get(id(column))
        if known is not None and known() is column:
            return False
        if any(isinstance(part, torch.nn.Parameter) for part in (column, row)):
            return False
        made = column.grad_fn.name() if column.grad_fn is not None else ""
        if made.startswith(("Unsqueeze", "Expand")):
            return False
        return storage_id(column) != storage_id(row)

    def loss(self, event: Called) -> None:
        """Record the inputs of a loss function, and check their shapes."""
        func, args, kwargs, result, frame, _, _ = event
        given = list(args[:2])
        given += [kwargs[key] for key in ("input", "target") if kwargs and key in kwargs]
        if len(given) < 2 or not all(isinstance(part, Tensor) for part in given):
            return
        if func in PAIRED:
            self._broadcast(func, given[0], given[1], result, frame)
            if _is_column_beside_matrix(*given[:2]):
                self._note_broadcast(func, given[0], given[1], result, frame)
        if func in JUDGED:
            outer = user_frame(frame)
            labels = self.program.labels(given, outer)
            operands = tuple(map(TensorRecord.create, given, labels))
            made = [r for r in tensors(result) if r.grad_fn is not None]
            self.events.note(
                LossCall(function=func.__name__),
                self.program.place(outer),
                [int(r.grad_fn._sequence_nr()) for r in made],  # type: ignore[union-attr]
                operands=operands,
            )


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
_ADDING = functions_named("add __add__ __radd__")
_IN_PLACE = functions_named("__iadd__ __isub__ add_ sub_", Tensor, TensorBase)
_ADDING_NUMBERS = _ADDING | _IN_PLACE | functions_named("sub __sub__ __rsub__")
# Elementwise losses, which broadcast their inputs.
PAIRED = functions_named("mse_loss l1_loss smooth_l1_loss huber_loss", functional)
# Losses whose inputs are recorded. Rules check which operations computed these inputs.
JUDGED = functions_named(
    "kl_div cross_entropy binary_cross_entropy binary_cross_entropy_with_logits", functional
)
# Function -> the method that checks calls of this function.
_CHECKS: dict[Any, Callable[[PairedTensors, Called], None]] = {
    TensorBase.__getitem__: PairedTensors.shape,
    **dict.fromkeys(UNSQUEEZE | KEEPING, PairedTensors.shape),
    **dict.fromkeys(ARITHMETIC, PairedTensors.elementwise),
    **dict.fromkeys(PAIRED | JUDGED, PairedTensors.loss),
    **dict.fromkeys(_IN_PLACE, PairedTensors.number),
}
