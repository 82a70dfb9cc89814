"""Find straight-through estimators that return another value, or the opposite gradient.

`x + (q - x).detach()` has the value of q and the gradient of x. With the operands in another order,
the value is 2 x - q. Differences are remembered by their memory, which `detach` shares.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from torch import Tensor

from ...findings.rules.meaning.straight_through import EstimatorFault, ReversedEstimator
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory, storage_id, storage_ref
from ...tracing.nodes import GradFn, sources_of
from ..listener import Listener
from ..program import Program

_SUBTRACTING = functions_named("sub __sub__")
_ADDING = functions_named("add __add__ __radd__")
_MAX_DIFFERENCES = 64  # maximum number of differences to remember
_MAX_NODES = 16  # maximum number of nodes between a step function and its use
# Operations that may scale or move the result of a step function.
_SCALING = {"Mul", "Div", "Add", "Sub", "Clamp", "View", "Expand", "Clone", "Permute", "Transpose"}
# Operations that return one of a few values.
_STEPS = ("Round", "Sign", "Floor", "Ceil", "Trunc", "Embedding", "Index", "IndexSelect", "Gather")


class _Difference(NamedTuple):
    """A difference of two tensors."""

    memory: Any  # weak reference to the storage of the result
    operands: tuple[_Operand, _Operand]


class _Operand(NamedTuple):
    """An operand of a difference."""

    storage: int
    memory: Any  # weak reference to the storage
    requires_grad: bool
    is_step: bool  # True if a step function or a lookup computed it

    @classmethod
    def create(cls, tensor: Tensor) -> _Operand:
        """Create the record of a live tensor."""
        step = tensor.requires_grad and _is_step(tensor)
        return cls(storage_id(tensor), storage_ref(tensor), tensor.requires_grad, step)

    def is_of(self, tensor: Tensor) -> bool:
        """Return True if the operand shares the memory of a tensor."""
        return self.storage == storage_id(tensor) and not self.memory.expired()


class StraightThrough(Listener):
    """Listener that reports straight-through estimators with operands in the wrong order."""

    needs = ("every_call",)
    functions = frozenset((*_SUBTRACTING, *_ADDING))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._differences: OrderedDict[int, _Difference] = OrderedDict()  # by storage

    def on_call_end(self, event: Called) -> None:
        if len(event.args) < 2:
            return
        one, other = event.args[:2]
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return
        if one.shape != other.shape or not TensorBase.is_floating_point(one):
            return
        if not (one.requires_grad or other.requires_grad):
            return
        if not (has_memory(one) and has_memory(other) and has_memory(event.result)):
            return
        adds = event.func in _ADDING
        if one.requires_grad != other.requires_grad and event.result.requires_grad:
            self._check(event, one, other, adds=adds)
        if not adds:
            operands = _Operand.create(one), _Operand.create(other)
            found = _Difference(storage_ref(event.result), operands)
            self._differences[storage_id(event.result)] = found
            if len(self._differences) > _MAX_DIFFERENCES:
                self._differences.popitem(last=False)

    def _check(self, event: Called, one: Tensor, other: Tensor, *, adds: bool) -> None:
        """Check a sum or a difference of a tensor with a gradient and one without."""
        kept, constant = (one, other) if one.requires_grad else (other, one)
        if (difference := self._find(constant)) is not None and (adds or kept is one):
            # The constant is a detached difference. `x + (x - q)` and `x - (q - x)` are 2 x - q.
            twice, step = difference.operands[:: 1 if adds else -1]
            if twice.is_of(kept) and step.is_step:
                self._note(event, "value")
        elif (difference := self._find(kept)) is not None and adds:
            # `(q - x) + x.detach()` has the value of q, and minus the gradient of x.
            step, negative = difference.operands
            if negative.is_of(constant) and negative.requires_grad and step.is_step:
                self._note(event, "gradient")

    def _find(self, tensor: Tensor) -> _Difference | None:
        """Return the difference that a tensor, or the tensor that it was detached from, is."""
        found = self._differences.get(storage_id(tensor))
        return found if found is not None and not found.memory.expired() else None

    def _note(self, event: Called, what: EstimatorFault) -> None:
        place = self.program.place(event.frame)
        numbers = [int(event.result.grad_fn._sequence_nr())]
        self.events.note(ReversedEstimator(what=what), place, numbers)

    def close(self) -> None:
        self._differences.clear()


def _is_step(tensor: Tensor) -> bool:
    fns: list[GradFn] = [] if tensor.grad_fn is None else [tensor.grad_fn]
    for fn in fns:
        if fn.name().removesuffix("Backward0") in _STEPS:
            return True
        if len(fns) < _MAX_NODES and fn.name().removesuffix("Backward0") in _SCALING:
            fns += sources_of(fn)
    return False
