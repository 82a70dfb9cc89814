"""Seeing every call into torch that the user's thread makes."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ..internals.dispatch import sequence_number
from ..internals.dynamo import uncompiled_itself
from ..internals.frames import local_variables
from ..internals.modes import FUNCTIONS, leave
from ..internals.pytree import tensors
from .cuts import Cuts, sources
from .failures.in_place import IN_PLACE, OPTIONS, Changes
from .failures.operands import Error, Failed, operand
from .modules import Modules
from .source_lines import Place, user_frame
from .tracking import ASIDE, Following, name_of
from .transfers import Seen

# Private (2.13): is torch.jit.trace at work. It would note what we read, and our names for it.
_jit_tracing = torch._C._get_tracing_state

_DETACH_: Any = Tensor.detach_

_scale: CodeType = torch.amp.GradScaler.scale.__code__
_parts = (_scale, *(part for part in _scale.co_consts if isinstance(part, CodeType)))
_SCALING = {part.co_name: part for part in _parts}  # by name: a code object is slow to hash


class Calls(TorchFunctionMode):
    """A context that tells modules, cuts and copies what each call did.

    Args:
        modules: what names nodes and lines.
    """

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.following = Following()
        self.cuts = Cuts(self.following, self._here)
        self.changes = Changes(modules.place)
        self.calling: Any = None  # what the user called
        self.stepping = False  # is an optimizer's step running: it cuts nothing
        self.copied: list[tuple[Tensor, Seen]] = []  # copies that the running call made
        self.scaler: torch.amp.GradScaler | None = None  # that scaled since the last backward
        self.failed: Failed | None = None  # the last call that raised, since then

    def __exit__(self, *_: object) -> None:
        leave(self, FUNCTIONS)  # where recordings overlap, another's may be uppermost

    @uncompiled_itself
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_dynamo_compiling() or _jit_tracing() is not None:
            return func(*args, **(kwargs or {}))
        self.calling = func
        # After it nothing tells that the tensor ever needed a gradient.
        freed = sources(args) if func is _DETACH_ else None
        versions = None
        stepping = self.stepping
        if not stepping and (func in IN_PLACE or (kwargs and not OPTIONS.isdisjoint(kwargs))):
            versions = self.changes.before(func, args, kwargs, sys._getframe(1))
        start = sequence_number()
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self._raised(error, func, (args, kwargs), sys._getframe(1))
            raise
        end = sequence_number()
        self.calling = None
        if versions:
            self.changes.after(versions, func, kwargs, sys._getframe(1), start, end)
        if start != self.modules.reached:
            self.modules.skipped(start, sys._getframe(1))
        if end != start:
            frame = sys._getframe(1)
            self.modules.made(start, end, frame)
            if frame.f_code.co_name in _SCALING and frame.f_code in _SCALING.values():
                self.scaler = frame.f_locals["self"]
            if type(result) is not Tensor or not result.requires_grad:
                self.cuts.see(func, (args, kwargs), result)
        elif func in ASIDE:
            return result
        elif freed:
            self.cuts.cut("detach_", freed, [result])
        elif not stepping:
            self.cuts.see(func, (args, kwargs), result)
        if self.following.trails:
            self.following.call(func, (args, kwargs), start, end, result)
        if self.copied:
            self._follow(result)
        return result

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        """What the user calls a tensor, in this frame or in the model."""
        local = () if frame is None else local_variables(frame).items()
        for name, value in (*self.modules.parameters(), *local):
            if value is tensor:
                return str(name)
        return ""

    def _here(self, operands: list[Tensor]) -> tuple[list[str], Place | None, str, bool]:
        frame = user_frame(sys._getframe(1))
        labels = [self.label(tensor, frame) for tensor in operands]
        modules = self.modules
        return labels, modules.place(frame), modules.module, modules.in_forward

    def _follow(self, result: Any) -> None:
        """Follow the copies that the call made, as far as it returned them."""
        returned = {id(tensor) for tensor in tensors(result)}
        for made, seen in self.copied:
            if id(made) in returned:
                self.following.add(made, seen)
        self.copied.clear()

    def _raised(self, error: BaseException, func: Any, arguments: Any, frame: FrameType) -> None:
        """Note a call that raised; its operands go by what the user's own frames call them."""
        told = Error.of(error)
        if self.failed is not None and self.failed.error == told:
            return  # it passes through an outer call
        operands = []
        for tensor in tensors(arguments):
            label = ""
            outer = user_frame(frame)
            while not label and outer is not None:
                label, outer = self.label(tensor, outer), outer.f_back
            operands.append(operand(label, tensor))
        self.failed = Failed(told, name_of(func), self.modules.place(frame), operands)
