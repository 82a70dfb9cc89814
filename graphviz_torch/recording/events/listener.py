"""Calls that make no node and yet decide what a backward does: noted as events.

A read or a change of `.grad`, a leaf made of a result, `x.data = h`, and what pairs.py tells: an
operation that broadcasts (N, 1) with (N,), and the inputs of loss functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...graph import TensorMeta
from ...internals.frames import OWN, local_variables, owner, user_frame
from ...internals.functions import UNSCALE
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import parameters_of
from ...internals.tensors.weak import Ref
from ...tracing.nodes import operation
from ..backward import Backward
from ..failures.in_place import Changes
from ..live import LiveBackward
from ..program import Program
from ..source_lines import Place, assigned, source_text
from .events import TensorRecord
from .gradient_life import GradientLife
from .nonfinite import birth
from .pairs import ARITHMETIC, JUDGED, KEEPING, PAIRED, UNSQUEEZE, PairListener, unseen
from .training import Schedules, look_at_modes, look_for_strangers

_LEAVES = 256  # that were made by hand and are remembered


class EventListener(PairListener):
    """What calls tell that make no node.

    Args:
        program: names tensors and lines.
        changes: learn which leaves a step written by hand may change.
    """

    def __init__(self, program: Program, changes: Changes) -> None:
        super().__init__(program)
        self.life = GradientLife(self.events, program.place)
        self._changes = changes
        self._schedules = Schedules(program.frame)
        self._scaled = False  # has a loss been multiplied by a loss scale
        self._loss_is_nonfinite = False  # is a loss NaN or Inf: what is so later follows
        self._leaves: dict[int, tuple[Ref, Place | None, str]] = {}

    def begin_backward(
        self, outputs: Sequence[Any], live: LiveBackward, frame: FrameType | None
    ) -> None:
        """Backward is about to run, called from `frame` of the user's."""
        with unseen_calls():
            self._look_at_leaves(outputs, frame)
            look_at_modes(self.events, self._program)
            look_for_strangers(self.events, self._program, live.variables())
            self._look_at_values(outputs, live)

    def end_backward(self, backward: Backward) -> None:
        """It has run."""
        self._scaled = self._scaled or backward.loss_scale is not None
        if backward.accumulates and backward.error is None:
            reached = backward.reached & self._program.table.own()
            self.life.backward(set(reached), backward.loss_scale is not None, backward.place)

    def step(self, optimizer: Optimizer, place: Place | None, caller: FrameType) -> None:
        """An optimizer is about to step, called from the frame `caller`."""
        parameters = {id(parameter) for parameter in parameters_of(optimizer)}
        self.life.step(parameters)
        frame = self._program.frame
        variables = {} if frame is None else local_variables(frame)
        named = (name for name, value in variables.items() if value is optimizer)
        name = next(named, type(optimizer).__name__)
        self._schedules.step(
            self.events, self._program, optimizer, user_frame(caller), name, self._scaled
        )
        strangers = parameters - self._program.table.own()
        if len(strangers) < len(parameters):  # of another model that learns, they say nothing
            with unseen_calls():
                optimized = parameters_of(optimizer)
                strangers = {id(p) for p in optimized if id(p) in strangers and p.grad is None}
        self.events.note("step", place, name, detail=str(len(strangers)))

    def _look_at_leaves(self, outputs: Sequence[Any], frame: FrameType | None) -> None:
        """Is what backward starts from a leaf?"""
        for tensor in outputs:
            if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
                continue
            if any(tensor is parameter for _, parameter in self._program.parameters()):
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
            operands = [TensorRecord.of(tensor, label)]
            leaves = [id(tensor)]
            self.events.note("leaf", place, label, name, operands=operands, leaves=leaves)

    def look_at_values(self, outputs: Sequence[Any], live: LiveBackward) -> None:
        """Backward is about to run on results that are not finite: what made the first?"""
        with unseen_calls():
            self._look_at_values(outputs, live)

    def _look_at_values(self, outputs: Sequence[Any], live: LiveBackward) -> None:
        """Has the forward made NaN or Inf?"""
        if self._loss_is_nonfinite:
            return
        found = birth(live.ids, outputs, live.activations())
        # A scaled loss may overflow: the scaler skips that step.
        if found is None or not (found.nan or live.call.loss_scale is None):
            return
        self._loss_is_nonfinite = found.in_loss
        number = int(found.fn._sequence_nr())
        kinds = (found.nan, "NaN"), (found.inf, "Inf")
        counts = (f"{n} {kind}" if found.counted else kind for n, kind in kinds if n)
        made = " and ".join(counts) or "Inf"
        self.events.note(
            "nonfinite",
            None,
            "loss" if found.in_loss else "",
            operation(found.fn.name().rpartition("::")[2]),
            f"made {made}" + (f": {found.reason}" if found.reason else ""),
            operands=[TensorRecord("", TensorMeta((), "float32", "cpu"), number, 0)],
            numbers=[number],
        )

    # What reads and changes of gradients tell: the arguments, the result, and the frame.

    def grad_read(self, args: Any, result: Any, frame: FrameType) -> None:
        """`x.grad`."""
        tensor = args[0]
        if owner(frame.f_code.co_filename) != OWN:
            self.life.read(tensor, result, frame)
            return
        with unseen_calls():
            self.life.read(tensor, result, frame)
            if result is not None and tensor.is_leaf:
                self._changes.read(tensor)
            if result is None and not tensor.is_leaf and not tensor.retains_grad:
                label = self._label(tensor, frame)
                place = self._program.place(frame)
                operands = [TensorRecord.of(tensor, label)]
                numbers = [int(tensor.grad_fn._sequence_nr())]
                self.events.note("grad", place, label, operands=operands, numbers=numbers)

    def grad_write(self, args: Any, result: Any, frame: FrameType) -> None:
        """`x.grad = ...`."""
        self.life.write(args[0], args[1], frame)

    # What other calls tell: each takes the function, too.

    def unscale(self, func: Any, args: Any, kwargs: Any, result: Any, frame: FrameType) -> None:
        """`scaler.unscale_(optimizer)`, which `scaler.step` calls too."""
        self.life.unscaled()

    @unseen
    def leaf(self, func: Any, args: Any, kwargs: Any, result: Any, frame: FrameType) -> None:
        """`x.requires_grad = True`, `x.requires_grad_()`, `torch.tensor(x, requires_grad=True)`."""
        kwargs = kwargs or {}
        if func is torch.tensor:
            wanted, tensor, name = kwargs.get("requires_grad"), result, "torch.tensor"
        else:
            tensor, name = args[0], "requires_grad_" if result is not None else "requires_grad"
            wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        parameter = isinstance(tensor, torch.nn.Parameter)
        if not wanted and parameter:
            self.events.note("frozen", self._program.place(frame))
        if wanted and not parameter and tensor.is_leaf:
            place = self._program.place(frame)
            self._leaves[id(tensor)] = Ref(tensor), place, name
            while len(self._leaves) > _LEAVES:
                del self._leaves[next(iter(self._leaves))]

    @unseen
    def data_write(self, func: Any, args: Any, kwargs: Any, result: Any, frame: FrameType) -> None:
        """`x.data = h`."""
        value = args[1]
        self._changes.replaced(args[0])
        if isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None:
            outer = user_frame(frame)
            label, other = self._label(args[0], outer), self._label(value, outer)
            self.events.note(
                "data",
                self._program.place(outer),
                label,
                operands=[TensorRecord.of(value, other)],
                numbers=[int(value.grad_fn._sequence_nr())],
            )


_grad: Any = Tensor.grad
_requires_grad: Any = Tensor.requires_grad
_data: Any = Tensor.data
GRADIENTS: dict[Any, Callable[[EventListener, Any, Any, FrameType], None]] = {
    _grad.__get__: EventListener.grad_read,
    _grad.__set__: EventListener.grad_write,
}
Listener = Callable[[EventListener, Any, Any, Any, Any, FrameType], None]
# Whom a call is told, by what is called.
LISTENERS: dict[Any, Listener] = {
    UNSCALE: EventListener.unscale,
    _requires_grad.__set__: EventListener.leaf,
    Tensor.requires_grad_: EventListener.leaf,
    torch.tensor: EventListener.leaf,
    _data.__set__: EventListener.data_write,
    Tensor.__getitem__: EventListener.shape,
    **dict.fromkeys(UNSQUEEZE | KEEPING, EventListener.shape),
    **dict.fromkeys(ARITHMETIC, EventListener.elementwise),
    **dict.fromkeys(PAIRED | JUDGED, EventListener.loss),
}
