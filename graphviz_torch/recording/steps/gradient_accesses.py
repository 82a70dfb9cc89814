"""Append rows to the log when gradients are read, clipped, unscaled, cleared or averaged.

Reads of a non-leaf's `.grad`, which is None, are reported, and assignments `x.data = h` that cut
off gradients. The record of in-place changes, `Changes`, is notified of both accesses, because a
program may update a parameter by hand in this way.

Reads of `.grad` by PyTorch's optimizers, clipping functions and GradScaler are recognized by their
source files.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from ...findings.rules.leaves import DataAssignment, GradientRead
from ...internals.frames import LIBRARY, OWN, TORCH, clipping_function, code_owner, user_frame
from ...internals.functions import READ_GRAD, SET_DATA, SET_GRAD, UNSCALE
from ...internals.hooks.calls import Called
from ...internals.hooks.collectives import CollectiveIssued
from ...internals.hooks.optimizers import Stepping
from ...internals.hooks.zero_grad import GradientsCleared
from ...internals.tensors.memory import storage_id
from ...internals.tensors.references import Ref
from ...tracing.tracer import collect_nodes
from ..listener import BackwardEnded, Listener, Resumed
from ..live import leaves_of
from ..program import Program
from ..program.events import TensorRecord
from ..program.rows import AverageRow, ClearRow, ClipRow, GradientReadRow, UnscaleRow

_CLIPPING = inspect.getfile(clip_grad)
_OPTIMIZER = inspect.getfile(Optimizer)
_CLEARING = (_OPTIMIZER, inspect.getfile(torch.nn.Module))
_AVERAGES = ("all_reduce", "reduce_scatter", "reduce")  # collectives


class GradientAccesses(Listener):
    """Listener that appends rows of reads, clips and clears of gradients.

    It reports reads of a non-leaf's `.grad`, and assignments to `.data` that cut off gradients.
    """

    functions = frozenset((READ_GRAD, SET_GRAD, SET_DATA, UNSCALE))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # The parameters with an unused gradient, by id(). Temporary parameters may be freed.
        self._fresh: dict[int, Ref] = {}

    def on_backward_end(self, event: BackwardEnded) -> None:
        if event.backward.call.accumulates and not event.backward.failed:
            parameters = self.program.table.by_id()
            reached = event.backward.reached & parameters.keys()
            self._fresh |= {key: Ref(parameters[key]) for key in reached}

    def on_optimizer_step_start(self, event: Stepping) -> None:
        used = self.program.steps.parameters(event.optimizer)
        self._forget(self._fresh if used is None else used)

    def on_resume(self, event: Resumed) -> None:
        self._fresh = {}

    def on_call_end(self, event: Called) -> None:
        func, args, _, result, frame, _, _ = event
        steps = self.program.steps
        if steps.running and steps.is_own_call(frame):
            return
        if func is UNSCALE:  # called by the program or by `scaler.step`
            self.program.log.append(UnscaleRow())
        elif func == READ_GRAD:
            if code_owner(frame.f_code.co_filename) == OWN:
                self._on_own_read(args[0], result, frame)
            self._on_read(args[0], result, frame)
        elif func == SET_DATA:
            self._on_data_set(args[0], args[1], frame)
        elif self._is_fresh(args[0]):  # an assignment to `.grad`
            owner = code_owner(frame.f_code.co_filename)
            # A library such as ZeRO uses a gradient before it sets the gradient to None.
            if args[1] is None and owner != LIBRARY:
                self._on_clear({id(args[0])}, frame, frame.f_code.co_filename == _OPTIMIZER)
            else:
                self.program.log.append(GradientReadRow(id(args[0])))

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        if self._fresh and not self.program.steps.is_own_call(event.frame):
            parameters, fresh = self.program.table.by_id(), self._fresh
            empty = [key for key in fresh.keys() & parameters if parameters[key].grad is None]
            cleared = {key for key in empty if fresh[key]() is parameters[key]}
            self._on_clear(cleared, event.frame, event.by_optimizer)

    def on_collective(self, event: CollectiveIssued) -> None:
        if event.kind in _AVERAGES and self.program.is_here():
            self.program.log.append(AverageRow(frozenset(map(storage_id, event.given))))

    def _is_fresh(self, parameter: Tensor) -> bool:
        """Return True if a parameter has a gradient that nothing has used."""
        known = self._fresh.get(id(parameter))
        return known is not None and known() is parameter

    def _forget(self, parameters: Iterable[int]) -> None:
        """Record that the gradients of parameters, by id(), were used or cleared."""
        for key in self._fresh.keys() & parameters:
            del self._fresh[key]

    def _on_own_read(self, tensor: Tensor, gradient: Tensor | None, frame: FrameType) -> None:
        """Report a read of `tensor.grad` by the program, if no backward sets this attribute."""
        if gradient is not None and tensor.is_leaf:
            self.program.changes.on_grad_read(tensor)
        if gradient is None and not tensor.is_leaf and not tensor.retains_grad:
            given = TensorRecord.create(tensor, self.program.label(tensor, frame))
            numbers = () if given.number is None else (given.number,)
            place = self.program.place(frame)
            self.events.note(GradientRead(label=given.label), place, numbers, tensor=given)

    def _on_data_set(self, tensor: Tensor, value: Any, frame: FrameType) -> None:
        """Report an assignment `tensor.data = value` through which leaves get no gradient."""
        self.program.changes.on_data_assignment(tensor)
        fn = value.grad_fn if isinstance(value, Tensor) else None
        # A value that depends on no other leaf only updates the tensor by hand.
        others = leaves_of(collect_nodes([fn])[0]) if fn is not None else ()
        if fn is not None and any(leaf.variable is not tensor for leaf in others):
            outer = user_frame(frame)
            label, other = self.program.label(tensor, outer), self.program.label(value, outer)
            given = TensorRecord.create(value, other)
            numbers = [int(fn._sequence_nr())]
            place = self.program.place(outer)
            self.events.note(DataAssignment(label=label), place, numbers, value=given)

    def _on_read(self, parameter: Tensor, gradient: Tensor | None, frame: FrameType) -> None:
        """Append a row if a read of `parameter.grad` uses, clips or clears the gradient."""
        code, key = frame.f_code, id(parameter)
        owner = code_owner(code.co_filename)
        if code.co_filename == _CLIPPING:
            if _max_norm(frame) < math.inf:  # else the call only computes the norm
                self._on_clip(key, gradient, frame)
        elif not self._is_fresh(parameter):
            # The program may read a gradient of another tensor, such as an input.
            if gradient is not None and owner == OWN and parameter.is_leaf:
                self.program.log.append(GradientReadRow(key))
        elif code.co_name == "zero_grad" and code.co_filename in _CLEARING:
            # `zero_grad` is about to set the gradient to None or zeros.
            self._on_clear({key}, frame, code.co_filename == _OPTIMIZER)
        elif owner in (OWN, LIBRARY):
            self.program.log.append(GradientReadRow(key, is_use=owner == OWN))

    def _on_clip(self, key: int, gradient: Tensor | None, frame: FrameType) -> None:
        storage = None if gradient is None else storage_id(gradient)
        function, place = clipping_function(frame), self.program.place(frame)
        backwards = self.events.backwards
        self.program.log.append(ClipRow(key, function, place, storage, backwards))

    def _on_clear(self, parameters: set[int], frame: FrameType, by_optimizer: bool) -> None:
        if parameters:
            self._forget(parameters)
            steps, place = self.program.steps.count, self.program.place(frame)
            row = ClearRow(frozenset(parameters), place, by_optimizer, steps)
            self.program.log.append(row)


def _max_norm(frame: FrameType | None) -> float:
    """Return the `max_norm` that the running clip_grad_norm_ was called with; 0 if unknown."""
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        if "max_norm" in frame.f_locals:
            return float(frame.f_locals["max_norm"])
        frame = frame.f_back
    return 0.0
