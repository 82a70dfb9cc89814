"""Find straight-through estimators that return another value, or the opposite gradient.

`x + (q - x).detach()` has the value of q and the gradient of x. With the operands in another order,
the value is 2 x - q. Differences are remembered by their memory, which `detach` shares.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import ClassVar

from torch import Tensor

from ...findings.rules.wrong_gradients import EstimatorFault, ReversedEstimator
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory
from ...tracing.nodes import GradFn, sources_of
from ..program import Program
from ..program.log import Found, Query, RowsOf

_SUBTRACTING = functions_named("sub __sub__")
_ADDING = functions_named("add __add__ __radd__")
_MAX_DIFFERENCES = 64  # maximum number of differences to remember
_MAX_NODES = 16  # maximum number of nodes between a step function and its use
# Operations that may scale or move the result of a step function.
_SCALING = {"Mul", "Div", "Add", "Sub", "Clamp", "View", "Expand", "Clone", "Permute", "Transpose"}
# Operations that return one of a few values.
_STEPS = ("Round", "Sign", "Floor", "Ceil", "Trunc", "Embedding", "Index", "IndexSelect", "Gather")


class SumOperand(NamedTuple):
    """An operand of a sum or difference."""

    memory: int | None  # number of the storage; None for one that is in no earlier row
    requires_grad: bool
    is_step: bool = False  # True if a step function or a lookup computed it


class SumRow(NamedTuple):
    """A sum or difference of two tensors of which at least one requires a gradient."""

    adds: bool
    operands: tuple[SumOperand, SumOperand]
    result: int  # number of the storage of a difference; 0 for a sum
    # Line, and sequence number of the node; None and 0 if none or both operands require a gradient.
    place: CodePosition | None = None
    number: int = 0


def sums(event: Called, program: Program) -> Iterable[SumRow]:
    """Return a row of a difference, and of a sum with a tensor that may be a difference."""
    one, other = [*event.args[:2], None, None][:2]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return ()
    adds, learn = event.func in _ADDING, (one.requires_grad, other.requires_grad)
    if learn == (False, False) or (adds and all(learn)):
        return ()
    if one.shape != other.shape or not TensorBase.is_floating_point(one):
        return ()
    is_checked, identities = not all(learn) and event.result.requires_grad, program.identities
    if adds and not is_checked:
        return ()
    if not (has_memory(one) and has_memory(other) and has_memory(event.result)):
        return ()
    if adds:
        known = identities.find_memory(one), identities.find_memory(other)
        if known == (None, None):
            return ()
    else:
        known = identities.memory_number(one), identities.memory_number(other)
    steps = [not adds and part.requires_grad and _is_step(part) for part in (one, other)]
    operands = (
        SumOperand(known[0], one.requires_grad, steps[0]),
        SumOperand(known[1], other.requires_grad, steps[1]),
    )
    row = SumRow(adds, operands, 0 if adds else identities.memory_number(event.result))
    if is_checked:
        number = int(event.result.grad_fn._sequence_nr())
        row = row._replace(place=program.place(event.frame), number=number)
    return (row,)


class StraightThrough(Query):
    """Find straight-through estimators with operands in the wrong order."""

    functions = frozenset((*_SUBTRACTING, *_ADDING))
    rows_of: ClassVar[RowsOf] = {"on_call_end": sums}

    def __init__(self) -> None:
        # By storage of a difference: its operands.
        self._differences: OrderedDict[int, tuple[SumOperand, SumOperand]] = OrderedDict()

    def on_sum(self, row: SumRow) -> Iterator[Found]:
        fault = self._fault(row) if row.number else None
        if fault is not None:
            yield Found(ReversedEstimator(what=fault), row.place, (row.number,))
        if not row.adds:
            self._differences[row.result] = row.operands
            if len(self._differences) > _MAX_DIFFERENCES:
                self._differences.popitem(last=False)

    def _fault(self, row: SumRow) -> EstimatorFault | None:
        """Return the fault of a sum or difference of which one operand has a gradient."""
        one, other = row.operands
        kept, constant = (one, other) if one.requires_grad else (other, one)
        difference = self._differences.get(constant.memory or 0)
        if difference is not None and (row.adds or kept is one):
            # The constant is a detached difference. `x + (x - q)` and `x - (q - x)` are 2 x - q.
            twice, step = difference[:: 1 if row.adds else -1]
            return "value" if twice.memory == kept.memory and step.is_step else None
        difference = self._differences.get(kept.memory or 0)
        if difference is not None and row.adds:
            # `(q - x) + x.detach()` has the value of q, and minus the gradient of x.
            step, negative = difference
            is_of = negative.memory == constant.memory and negative.requires_grad
            return "gradient" if is_of and step.is_step else None
        return None


def _is_step(tensor: Tensor) -> bool:
    fns: list[GradFn] = [] if tensor.grad_fn is None else [tensor.grad_fn]
    for fn in fns:
        if fn.name().removesuffix("Backward0") in _STEPS:
            return True
        if len(fns) < _MAX_NODES and fn.name().removesuffix("Backward0") in _SCALING:
            fns += sources_of(fn)
    return False
