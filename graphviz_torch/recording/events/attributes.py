"""Observe reads of `.grad` and assignments to `.data`, which may miss or cut off gradients."""

from __future__ import annotations

from torch import Tensor

from ...findings.rules.leaves import DataAssignment, GradientRead
from ...internals.frames import OWN, code_owner, user_frame
from ...internals.functions import READ_GRAD, SET_DATA
from ...internals.hooks.calls import Called
from ...tracing.tracer import collect_nodes
from ..listener import Listener
from ..live import leaves_of
from ..program.events import TensorRecord


class TensorAttributes(Listener):
    """Listener that reports reads of a non-leaf's `.grad`, and gradients cut off by `x.data = h`.

    It also notifies `Changes`, the record of in-place changes, of both accesses. A program may
    update a parameter by hand in this way.
    """

    needs = ("every_call",)
    functions = frozenset((READ_GRAD, SET_DATA))

    def on_call_end(self, event: Called) -> None:
        reads = len(event.args) == 1  # True: a read of `.grad`. False: an assignment to `.data`
        if reads and code_owner(event.frame.f_code.co_filename) != OWN:
            return
        if self.program.steps.is_own_call(event.frame):
            return
        if reads:
            self._grad_read(event)
        else:
            self._data_set(event)

    def _grad_read(self, event: Called) -> None:
        tensor, result, frame = event.args[0], event.result, event.frame
        if result is not None and tensor.is_leaf:
            self.program.changes.on_grad_read(tensor)
        if result is None and not tensor.is_leaf and not tensor.retains_grad:
            label = self.program.label(tensor, frame)
            place = self.program.place(frame)
            numbers = [int(tensor.grad_fn._sequence_nr())]
            given = TensorRecord.create(tensor, label)
            self.events.note(GradientRead(label=label), place, numbers, tensor=given)

    def _data_set(self, event: Called) -> None:
        tensor, value = event.args
        self.program.changes.on_data_assignment(tensor)
        if (
            isinstance(value, Tensor)
            and value.grad_fn is not None
            and _has_another_leaf(value, tensor)
        ):
            outer = user_frame(event.frame)
            label, other = self.program.label(tensor, outer), self.program.label(value, outer)
            self.events.note(
                DataAssignment(label=label),
                self.program.place(outer),
                numbers=[int(value.grad_fn._sequence_nr())],
                value=TensorRecord.create(value, other),
            )


def _has_another_leaf(value: Tensor, tensor: Tensor) -> bool:
    """Return True if a value depends on a leaf that is not `tensor`.

    If it does not, assigning the value to `tensor.data` only updates the tensor by hand.
    """
    fns, _ = collect_nodes([value.grad_fn])
    return any(leaf.variable is not tensor for leaf in leaves_of(fns))
