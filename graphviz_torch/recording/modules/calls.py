"""Record how modules are called: on PyTorch's fast path, once per sample.

Fast path: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` compute
a layer in one kernel in eval mode without gradients, but only if no function mode is active. The
recording therefore exits its own function mode during such a layer, and records the layer as one
call.

One call per sample: a module is reported if the program calls it on all slices of a tensor, one
after the other, without a backward in between. Only calls with gradients enabled count. Slices of
integers count only if the module is an outermost one, because decoders look up one token at a time.
A module whose state changes between its calls, such as a recurrent cell, is not reported.
"""

from __future__ import annotations

from itertools import chain
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn import Module

from ...findings.rules.meaning.calls import CallPerSample
from ...graph.immutable import mutable
from ...internals.frames import frame_variables
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, CallWatch
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modes import FUNCTIONS, leave, unseen_calls
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.pytree import tensors
from ..listener import BackwardBegan, Listener
from ..program import Program

_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPaths(Listener):
    """Listener that leaves the recording's function mode while a layer's fused fast path runs."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._layer: nn.Module | None = None  # the layer that is running on the fast path
        self._calls: CallWatch | None = None  # the function mode that was exited

    def on_module_start(self, event: ModuleBegan) -> None:
        module = event.module
        if (
            self._layer is None
            and isinstance(module, _LAYERS)
            and not getattr(module, "training", True)
        ):
            if not _creates_no_node(module, event.frame):
                return
            # With another function mode, PyTorch would not take the fast path after ours is exited.
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


def _creates_no_node(layer: nn.Module, frame: FrameType) -> bool:
    """Return True if a layer creates no node, since no input or parameter requires a gradient."""
    given = tensors(*frame_variables(frame, "args", "kwargs"))
    if isinstance(layer, nn.TransformerEncoder) and len(given) < 2:
        return False  # without a mask, each inner layer decides whether it takes the fast path
    asked = [*given, *layer.parameters()] if torch.is_grad_enabled() else ()
    return not any(tensor.requires_grad for tensor in asked)


_MIN_CALLS = 8  # fewer calls on adjacent slices are not reported
_MAX_MODULES = 64  # number of modules whose calls are counted at the same time
_CHANNELS = (1, 3)  # a 3-D slice is one image if it has one of these numbers of channels

State = tuple[tuple[int, int], ...]


@mutable
class _SliceCalls:
    """Consecutive calls of a module on adjacent slices."""

    memory: int  # storage id of the sliced tensor
    shape: tuple[int, ...]  # shape of a slice
    next: int  # storage offset of the slice after the last one
    count: int = 1  # number of calls
    state: State = ()  # the module's state before call number `_MIN_CALLS - 1`


class SampleCalls(Listener):
    """Listener that reports a module that is called once for each sample of a tensor."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._last: dict[int, _SliceCalls] = {}  # by id() of the module
        self._slice: tuple[object, ...] = ()  # the argument of the last counted call

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
            return  # an outer module, whose call was counted, passed the slice on to this module
        self._slice = memory, shape, start
        last = self._last.get(id(event.module))
        if last is None or (last.memory, last.shape, last.next) != (memory, shape, start):
            self._last.pop(id(event.module), None)
            self._last[id(event.module)] = _SliceCalls(memory, shape, start + number)
            if len(self._last) > _MAX_MODULES:
                del self._last[next(iter(self._last))]
            return
        last.next += number
        last.count += 1
        if last.count == _MIN_CALLS - 1:
            last.state = _state_of(event)
        elif last.count == _MIN_CALLS and last.state != _state_of(event):
            del self._last[id(event.module)]
        elif last.count >= _MIN_CALLS:
            path = self.program.stack.module
            idle = CallPerSample(module=path or type(event.module).__name__)
            self.events.note(idle, self.program.place(event.frame), count=last.count)

    def on_backward_start(self, event: BackwardBegan) -> None:
        # If a backward follows each call, the program means to process single samples.
        self._last, self._slice = {}, ()

    def on_step_end(self, event: None) -> None:
        self._last, self._slice = {}, ()

    def _is_sample(self, tensor: Tensor) -> bool:
        inner = not self.program.stack.is_outermost
        return _is_sample(tensor) and (TensorBase.is_floating_point(tensor) or not inner)


def _is_sample(tensor: Tensor) -> bool:
    """Return True if a tensor is `x[i:i+1]`, or a vector or image `x[i]`, of another tensor `x`."""
    base, shape = tensor._base, tuple(tensor.shape)
    if base is None:
        return False
    whole = tuple(base.shape)
    if len(shape) == len(whole):
        return whole[:1] > (1,) and shape == (1, *whole[1:])
    image = len(shape) == 3 and shape[0] in _CHANNELS
    return shape == whole[1:] and (len(shape) == 1 or image)


def _state_of(event: ModuleBegan) -> State:
    """Return the id() and version of each tensor that may be the state of a called module.

    These are the module's attributes and buffers, and the keyword arguments of the call.
    """
    held = [frame_variables(event.frame, "kwargs")[0]]
    for module in _all_submodules(event.module):
        held += (vars(module), module._buffers)
    found: list[tuple[int, int]] = []
    with unseen_calls():
        for value in chain.from_iterable(each.values() for each in held if each):
            for tensor in value if isinstance(value, (tuple, list)) else (value,):
                if type(tensor) is Tensor and not TensorBase.is_inference(tensor):
                    found.append((id(tensor), tensor._version))
    return tuple(found)


def _all_submodules(module: Module) -> list[Module]:
    found = {id(module): module}
    stack = [module]
    while stack:
        for child in stack.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                stack.append(child)
    return list(found.values())
