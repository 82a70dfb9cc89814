"""Calls that make no node and yet decide what a backward does: noted as events.

A read or a change of `.grad`, a leaf made of a result, `x.data = h`, and what pairs.py tells: an
operation that broadcasts (N, 1) with (N,), and the inputs of loss functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...graph import NO_PARAMETERS, Graph
from ...graph.events import (
    DataAssignment,
    EvalMode,
    GradientRead,
    LeafBackward,
    OptimizerStep,
    ParameterFreeze,
)
from ...internals.frames import OWN, local_variables, outwards, owner, user_frame
from ...internals.functions import UNSCALE, TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.collectives import Sent
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.weak import Ref
from ..backward import Backward
from ..listener import BlockRaised, Resumed, RunBegan, RunEnded
from ..program import Program
from ..program.source_lines import Place, assigned, source_text
from .events import TensorRecord
from .gradient_life import GradientLife
from .nonfinite import NonfiniteValues
from .pairs import ARITHMETIC, JUDGED, KEEPING, PAIRED, UNSQUEEZE, PairListener
from .training import (
    Schedules,
    eval_mode,
    look_at_attributes,
    look_for_plain_lists,
    look_for_steps,
    look_for_strangers,
    note_eval_mode,
)

_LEAVES = 256  # that were made by hand and are remembered


class StepEvents(PairListener):
    """What calls tell that make no node; in a light recording what is not finite, and steps."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        light = program.options.light
        self.functions = frozenset() if light else frozenset(_LISTENERS)
        self.life = GradientLife(self.events, program.place, lambda: program.steps.count)
        self._changes = program.changes
        self._light = light
        self._schedules = Schedules(program.frame)
        self._scaled = False  # has a loss been multiplied by a loss scale
        self._values = NonfiniteValues(self.events)
        self._leaves: dict[int, tuple[Ref, Place | None, str]] = {}
        # Of the last backward, if it was in eval mode: an attack runs one, and steps in train mode.
        self._eval_mode: tuple[EvalMode, list[int]] | None = None
        self._first: dict[Place | None, int] = {}  # by a line: steps before its first backward

    def called(self, event: Called) -> None:
        steps = self.program.steps
        if not (steps.running and steps.own(event.frame)):
            _LISTENERS[event.func](self, event)

    def block_raised(self, event: BlockRaised) -> None:
        if NO_PARAMETERS in str(event.error):
            look_for_plain_lists(self.events, self.program, event.error)

    def backward_began(self, event: RunBegan) -> None:
        self.events.begin_backward()
        if not self._light:
            self._look_at_leaves(event.outputs, event.frame)
            if event.live.call.accumulates:
                self._look_at_modes(event.outputs)
            look_for_strangers(self.events, self.program, event.live.variables())
            self._values.backward_began(event.outputs, event.live)
        elif event.live.notes:
            self._values.backward_began(event.outputs, event.live)

    def backward_ended(self, event: RunEnded) -> None:
        backward, call = event.backward, event.backward.call
        self._scaled = self._scaled or call.loss_scale is not None
        if call.accumulates and not backward.failed:
            reached = backward.reached & self.program.table.every()
            self.life.backward(set(reached), call.loss_scale is not None, call.place)

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._values.conclude()
        look_at_attributes(self.events, self.program)
        look_for_steps(self.events, self.program, backwards, self._first)

    def step_ended(self, event: None) -> None:
        self.events.begin_step()
        self._values.begin_step()
        self._eval_mode = None

    def resumed(self, event: Resumed) -> None:
        self.life.forget()
        self._first = {}

    def complete(self, graph: Graph, backward: Backward) -> Graph:
        line = self.program.line()
        events = self.events.until(
            backward.position + 1,
            backward.node,
            backward.reading.leaves.get,
            line,
            self.program.source_in(line),
        )
        return replace(graph, events=(*events, *graph.events))

    def stepped(self, event: Stepped) -> None:
        self.life.stepped()

    def sent(self, event: Sent) -> None:
        if event.kind in ("all_reduce", "reduce_scatter", "reduce") and self.program.is_here():
            self.life.averaged(event.given)

    def stepping(self, event: Stepping) -> None:
        optimizer, caller = event.optimizer, event.frame
        place = self.program.place(caller)
        parameters = self.program.steps.parameters(optimizer)
        self.life.step(parameters)
        if self._eval_mode is not None:
            note_eval_mode(self.events, self.program, *self._eval_mode)
        name = self._name(optimizer, user_frame(caller))
        self._schedules.step(
            self.events, self.program, optimizer, user_frame(caller), name, self._scaled
        )
        parameters = parameters or set()
        strangers = parameters - self.program.table.own()
        if len(strangers) < len(parameters):  # of another model that learns, they say nothing
            optimized = parameters_of(optimizer)
            leaves = (p for p in optimized if id(p) in strangers and p.is_leaf)
            strangers = {id(p) for p in leaves if p.grad is None}  # else PyTorch warns
        rates = tuple([_rate(group) for group in optimizer.param_groups])
        step = OptimizerStep(optimizer=name, foreign=len(strangers))
        self.events.note(step, place, learning_rates=rates)

    def _name(self, optimizer: Optimizer, frame: FrameType | None) -> str:
        """What the code that steps calls it, or the code around; else its class."""
        for one in outwards(frame, self.program.frame):
            for name, value in local_variables(one).items():
                if value is optimizer:
                    return name
        return type(optimizer).__name__

    def _look_at_modes(self, outputs: Sequence[Any]) -> None:
        mode = eval_mode(self.program)
        made = [t.grad_fn for t in outputs if isinstance(t, Tensor) and t.grad_fn is not None]
        numbers = [int(fn._sequence_nr()) for fn in made]
        self._eval_mode = None if mode is None else (mode, numbers)

    def _look_at_leaves(self, outputs: Sequence[Any], frame: FrameType | None) -> None:
        """Is what backward starts from a leaf?"""
        for tensor in outputs:
            if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
                continue
            if any(tensor is parameter for _, parameter in self.program.parameters()):
                continue
            label = self._label(tensor, frame)
            known = self._leaves.get(id(tensor))
            if known is not None and known[0]() is tensor:
                _, place, name = known
            else:
                place, name = assigned(frame, label), ""
                if isinstance(tensor, torch.nn.Parameter):
                    name = "nn.Parameter"
                elif "Variable(" in source_text(place):
                    name = "Variable"
            self.events.note(LeafBackward(label=label, maker=name), place, leaves=[id(tensor)])

    def grad_read(self, event: Called) -> None:
        """`x.grad`."""
        tensor, result, frame = event.args[0], event.result, event.frame
        self.life.read(tensor, result, frame)
        if owner(frame.f_code.co_filename) != OWN:
            return
        if result is not None and tensor.is_leaf:
            self._changes.read(tensor)
        if result is None and not tensor.is_leaf and not tensor.retains_grad:
            label = self._label(tensor, frame)
            place = self.program.place(frame)
            numbers = [int(tensor.grad_fn._sequence_nr())]
            given = TensorRecord.of(tensor, label)
            self.events.note(GradientRead(label=label), place, numbers, tensor=given)

    def grad_write(self, event: Called) -> None:
        """`x.grad = ...`."""
        self.life.write(event.args[0], event.args[1], event.frame)

    def unscale(self, event: Called) -> None:
        """`scaler.unscale_(optimizer)`, which `scaler.step` calls too."""
        self.life.unscaled()

    def leaf(self, event: Called) -> None:
        """`x.requires_grad = True`, `x.requires_grad_()`, `torch.tensor(x, requires_grad=True)`."""
        func, args, kwargs, result, frame, _, _ = event
        kwargs = kwargs or {}
        if func is torch.tensor:
            wanted, tensor, name = kwargs.get("requires_grad"), result, "torch.tensor"
        else:
            tensor, name = args[0], "requires_grad_" if result is not None else "requires_grad"
            wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        parameter = isinstance(tensor, torch.nn.Parameter)
        if not wanted and parameter:
            self.events.note(ParameterFreeze(), self.program.place(frame))
        if wanted and not parameter and tensor.is_leaf:
            place = self.program.place(frame)
            self._leaves[id(tensor)] = Ref(tensor), place, name
            while len(self._leaves) > _LEAVES:
                del self._leaves[next(iter(self._leaves))]

    def data_write(self, event: Called) -> None:
        """`x.data = h`."""
        args, frame = event.args, event.frame
        value = args[1]
        self._changes.replaced(args[0])
        if isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None:
            outer = user_frame(frame)
            label, other = self._label(args[0], outer), self._label(value, outer)
            self.events.note(
                DataAssignment(label=label),
                self.program.place(outer),
                numbers=[int(value.grad_fn._sequence_nr())],
                value=TensorRecord.of(value, other),
            )


def _rate(group: dict[str, Any]) -> float | None:
    """The learning rate of a group of parameters; None where that is a tensor, or none is set."""
    rate = group.get("lr")
    return float(rate) if isinstance(rate, (int, float)) else None


_grad: Any = Tensor.grad
_requires_grad: Any = Tensor.requires_grad
_data: Any = Tensor.data
# What listens to a call, by what is called.
_LISTENERS: dict[Any, Callable[[StepEvents, Called], None]] = {
    _grad.__get__: StepEvents.grad_read,
    _grad.__set__: StepEvents.grad_write,
    UNSCALE: StepEvents.unscale,
    _requires_grad.__set__: StepEvents.leaf,
    TensorBase.requires_grad_: StepEvents.leaf,
    torch.tensor: StepEvents.leaf,
    _data.__set__: StepEvents.data_write,
    TensorBase.__getitem__: StepEvents.shape,
    **dict.fromkeys(UNSQUEEZE | KEEPING, StepEvents.shape),
    **dict.fromkeys(ARITHMETIC, StepEvents.elementwise),
    **dict.fromkeys(PAIRED | JUDGED, StepEvents.loss),
}
