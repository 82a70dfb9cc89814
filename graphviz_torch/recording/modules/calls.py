"""How modules are called: in which mode, on PyTorch's fast path, once for each sample.

Fast path: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` compute
a layer in one kernel, but only where no function mode watches: they ask that in eval mode, where
nothing needs a gradient. So the mode that sees a recording's calls leaves for them, and what it
would have told of cuts is told of the layer as one call.

Samples: counted are calls with gradients, one after the other between two backwards, of one module
on one tensor each: the slices lie side by side in the same memory, and each is one sample. Of a
module inside another the samples are floating point, for decoders look up one word after the other.
A module that holds a state, as a recurrent cell may, cannot be called once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn import Module

from ...graph.events.ineffective_calls import CallPerSample
from ...internals.frames import frame_variables
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, CallWatch
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modes import FUNCTIONS, leave, unseen_calls
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.pytree import tensors
from ..listener import BackwardBegan, Listener, Rows
from ..live import LiveGraph
from ..program import Program


class Modes(Listener):
    """The train or eval mode of each module that ran, when the last backward began."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._modes: dict[str, str] = {}

    def on_graph_read(self, live: LiveGraph) -> None:
        modules = self.program.table.called()
        known = [(m.training, path) for m, path in modules if hasattr(m, "training")]
        self._modes |= {path: "train" if training else "eval" for training, path in known}

    def on_step_end(self, event: None) -> None:
        self._modes = {}

    def module_columns(self) -> Rows:
        return {"mode": self._modes}


_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPaths(Listener):
    """Leaves the function mode before such a layer runs, and enters it afterwards."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._layer: nn.Module | None = None  # that runs without the mode
        self._calls: CallWatch | None = None  # the mode, which tells of the layer as of one call

    def on_module_start(self, event: ModuleBegan) -> None:
        module = event.module
        if (
            self._layer is None
            and isinstance(module, _LAYERS)
            and not getattr(module, "training", True)
        ):
            if not _may_be_taken(module, event.frame):
                return
            # Where another mode watches, PyTorch would not take that way without this one either.
            modes = [mode for mode in FUNCTIONS.now() if isinstance(mode, CallWatch)]
            own = [mode for mode in modes if mode.program is self.program.key]
            if own and len(modes) == len(FUNCTIONS.now()):
                self._layer, self._calls = module, own[0]
                leave(own[0], FUNCTIONS)

    def on_module_end(self, event: ModuleEnded) -> None:
        layer, calls = self._layer, self._calls
        if layer is None or calls is None or event.module is not layer:
            return
        output, frame = event.output, event.frame
        self._layer = self._calls = None
        FUNCTIONS.push(calls)
        if output is not None:
            number = sequence_number()
            args, kwargs = frame_variables(frame, "args", "kwargs")
            given = (*(args or ()), *layer.parameters())
            call = type(layer).forward, given, kwargs, output, frame, number, number
            calls.notify(Called(*call))


def _may_be_taken(layer: nn.Module, frame: FrameType) -> bool:
    """Return True if the layer takes nothing that requires a gradient, so it creates no node."""
    given = tensors(*frame_variables(frame, "args", "kwargs"))
    if isinstance(layer, nn.TransformerEncoder) and len(given) < 2:
        return False  # without a mask each of its layers asks for itself
    asked = [*given, *layer.parameters()] if torch.is_grad_enabled() else ()
    return not any(tensor.requires_grad for tensor in asked)


_ENOUGH = 8  # calls
_MODULES = 64  # that are known at once
_COLORS = (1, 3)  # of an image; what has three dimensions and other sizes may be a batch

State = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Run:
    """Calls on adjacent slices."""

    memory: int
    shape: tuple[int, ...]
    next: int  # where in memory the next slice begins
    count: int = 1
    state: State = ()  # of the module, before the last call but one


class SampleCalls(Listener):
    """Reports a module that is called once for each sample of a tensor.

    Notes a module that is called once for each sample of a tensor.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._last: dict[int, _Run] = {}  # by id() of the module
        self._slice: tuple[object, ...] = ()  # that the outer module of a call was given

    def on_module_start(self, event: ModuleBegan) -> None:
        args = event.args
        if len(args) != 1 or type(args[0]) is not Tensor or args[0]._base is None:
            return
        with unseen_calls():
            if not (torch.is_grad_enabled() and has_memory(args[0]) and self._is_sample(args[0])):
                return
            shape, start = tuple(args[0].shape), int(TensorBase.storage_offset(args[0]))
            number, memory = TensorBase.numel(args[0]), storage_id(args[0])
        if self._slice == (memory, shape, start) and not self.program.stack.is_outermost:
            return  # the module that passes it on is told of
        self._slice = memory, shape, start
        last = self._last.get(id(event.module))
        if last is None or (last.memory, last.shape, last.next) != (memory, shape, start):
            self._last.pop(id(event.module), None)
            self._last[id(event.module)] = _Run(memory, shape, start + number)
            if len(self._last) > _MODULES:
                del self._last[next(iter(self._last))]
            return
        last.next += number
        last.count += 1
        if last.count == _ENOUGH - 1:
            last.state = _state_of(event)
        elif last.count == _ENOUGH and last.state != _state_of(event):
            del self._last[id(event.module)]
        elif last.count >= _ENOUGH:
            path = self.program.stack.module
            idle = CallPerSample(module=path or type(event.module).__name__)
            self.events.note(idle, self.program.place(event.frame), count=last.count)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._last, self._slice = {}, ()  # a step for each sample is another thing

    def on_step_end(self, event: None) -> None:
        self._last, self._slice = {}, ()

    def _is_sample(self, tensor: Tensor) -> bool:
        inner = not self.program.stack.is_outermost
        return _is_sample(tensor) and (TensorBase.is_floating_point(tensor) or not inner)


def _is_sample(tensor: Tensor) -> bool:
    """Return True for x[i] (a vector or image) or x[i:i+1] of a tensor x that is not a view."""
    base, shape = tensor._base, tuple(tensor.shape)
    if base is None:
        return False
    whole = tuple(base.shape)
    if len(shape) == len(whole):
        return whole[:1] > (1,) and shape == (1, *whole[1:])
    image = len(shape) == 3 and shape[0] in _COLORS
    return shape == whole[1:] and (len(shape) == 1 or image)


def _state_of(event: ModuleBegan) -> State:
    """Return identity and version of each tensor that a module holds beside its parameters, or
    gets by keyword.
    """
    held = [frame_variables(event.frame, "kwargs")[0]]
    for module in _with_those_below(event.module):
        held += (vars(module), module._buffers)
    found: list[tuple[int, int]] = []
    with unseen_calls():
        for value in chain.from_iterable(each.values() for each in held if each):
            for tensor in value if isinstance(value, (tuple, list)) else (value,):
                if type(tensor) is Tensor and not TensorBase.is_inference(tensor):
                    found.append((id(tensor), tensor._version))
    return tuple(found)


def _with_those_below(module: Module) -> list[Module]:
    found = {id(module): module}
    stack = [module]
    while stack:
        for child in stack.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                stack.append(child)
    return list(found.values())
