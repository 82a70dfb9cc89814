"""Seeing every call into torch that the user's thread makes."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ..internals.dynamo import uncompiled_itself
from ..internals.frames import hide
from ..internals.grad_scaler import SCALING
from ..internals.guards import set_grad_enabled
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.modes import FUNCTIONS, leave, others, unseen_calls
from ..internals.tracers import is_jit_tracing
from .cuts.cuts import Cuts, sources
from .events.listener import GRADIENTS, LISTENERS, EventListener
from .failures.in_place import IN_PLACE, OPTIONS, Changes
from .failures.operands import FailedCalls
from .gradients.finite import FiniteResults
from .program import Program, recorded
from .steps.optimizers import Steps
from .tracking import METADATA_CALLS, Tracker
from .transfers.copies import Copies

_DETACH_: Any = Tensor.detach_
# torch.compile knows these as methods of a tensor, and in no other way.
_METHODS: tuple[Any, ...] = (
    Tensor.backward,
    Tensor.dim_order,
    Tensor.register_post_accumulate_grad_hook,
    Tensor.share_memory_,
    Tensor.split,  # 2.8
    Tensor.unflatten,
)
_PLAIN = (Tensor, Parameter)
# Reads of what a tensor is, half of the calls of a step: whom such a call is told, most nobody.
_RUNNING = {Tensor.backward, Tensor.__repr__, Tensor.__format__}  # that make nodes, or copy
_READS: dict[Any, Any] = dict.fromkeys(METADATA_CALLS - LISTENERS.keys() - _RUNNING) | GRADIENTS


class Calls(TorchFunctionMode):
    """A mode that tells, of each call, those whom it concerns: plain facts, and the calling frame.

    Args:
        program: is told which nodes a call made.
        steps: say which calls are an optimizer's own.
        tracker, cuts, copies: are told what a call took and gave.
        changes: of what it changes in place.
        failures: of what it raised.
        results: of what it gave, if it made a node; None where nobody looks at that.
        events: of what makes no node and yet decides what a backward does.
    """

    def __init__(
        self,
        program: Program,
        steps: Steps,
        tracker: Tracker,
        cuts: Cuts,
        copies: Copies,
        changes: Changes,
        failures: FailedCalls,
        results: FiniteResults | None,
        events: EventListener,
    ) -> None:
        super().__init__()
        self.calling: Any = None  # what the user called
        self.scaler: torch.amp.GradScaler | None = None  # that scaled since the last backward
        self._program = program
        self._key = program.key
        self._stack = program.stack
        self._origins = program.origins
        self._arguments = program.arguments
        self._steps = steps
        self._tracker = tracker
        self._cuts = cuts
        self._copies = copies
        self._changes = changes
        self._failures = failures
        self._results = results
        self._light = results is not None  # nothing is asked but what is not finite
        self._events = events

    def begin_step(self) -> None:
        """A backward has been read: what was noted before it is over."""
        self.scaler = None

    def __exit__(self, *_: object) -> None:
        leave(self, FUNCTIONS)  # where recordings overlap, another's may be uppermost

    @uncompiled_itself
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is set_grad_enabled:  # at once: a Ctrl-C on the way would leave the mode as it is
            return func(*args, **(kwargs or {}))
        if is_dynamo_compiling():
            if func in _METHODS and type(args[0]) in _PLAIN:
                return getattr(args[0], func.__name__)(*args[1:], **(kwargs or {}))
            return func(*args, **(kwargs or {}))
        if is_jit_tracing() or self._key not in recorded():
            return func(*args, **(kwargs or {}))
        read = _READS.get(func, self)
        if read is not self:
            try:
                result = func(*args, **kwargs) if kwargs else func(*args)
            except BaseException as error:
                self._raised(error, func, (args, kwargs), sys._getframe(1))
                hide(error)
                raise
            if sequence_number() != self._origins.end:
                self._stack.skipped(sequence_number(), sys._getframe(1))
            if read is not None and not self._light:
                try:
                    if not (self._steps.running and self._steps.own(sys._getframe(1))):
                        read(self._events, args, result, sys._getframe(1))
                except Exception as error:
                    self._program.miss(error)
            return result
        self.calling = func
        freed = versions = None
        stepping: Any = False
        try:
            # After it nothing tells that the tensor ever needed a gradient.
            freed = sources(args) if func is _DETACH_ else None
            changes = func in IN_PLACE or (kwargs and not OPTIONS.isdisjoint(kwargs))
            stepping = self._steps.running and self._steps.own(sys._getframe(1))
            if changes and not stepping:
                versions = self._changes.before(func, args, kwargs, sys._getframe(1))
        except Exception as error:
            self._program.miss(error)
        start = sequence_number()
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self._raised(error, func, (args, kwargs), sys._getframe(1))
            hide(error)
            raise
        end = sequence_number()
        self.calling = None
        try:
            if versions:
                self._changes.after(versions, func, kwargs, sys._getframe(1), start, end)
            if start != self._origins.end:
                self._stack.skipped(start, sys._getframe(1))
            listener = LISTENERS.get(func)
            if listener is not None and not (stepping or self._light):
                listener(self._events, func, args, kwargs, result, sys._getframe(1))
            if end != start:
                frame = sys._getframe(1)
                self._stack.made(start, end, frame)
                if end - start == 1 and not self._light:
                    self._arguments.see(start, func, args, kwargs)
                if frame.f_code.co_name in SCALING and frame.f_code in SCALING.values():
                    self.scaler = frame.f_locals["self"]
                if self._results is not None:
                    self._results.see(end - 1, result)
                plain = type(result) is Tensor and not others() and result.requires_grad
                if self._tracker.known or not plain:
                    called = (args, kwargs)
                    self._cuts.see(func, called, (start, end), result, frame, cuts=not plain)
            elif func in METADATA_CALLS:
                return result
            elif freed:
                self._cuts.detached(freed, result, sys._getframe(1))
            elif self._tracker.known or not stepping:
                frame, called = sys._getframe(1), (args, kwargs)
                self._cuts.see(func, called, (start, end), result, frame, cuts=not stepping)
            if self._copies.made:
                self._copies.follow(result)
        except Exception as error:
            self._program.miss(error)
        return result

    def _raised(self, error: BaseException, func: Any, given: Any, frame: Any) -> None:
        """Tell of a call that raised."""
        try:
            with unseen_calls():
                self._failures.note(error, func, given, frame)
        except Exception as ours:
            self._program.miss(ours)
