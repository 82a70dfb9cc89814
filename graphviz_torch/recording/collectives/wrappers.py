"""Find forwards that bypass a DDP wrapper, and gradients that the wrapper never gets.

Both are reported only when the optimizer steps. Until then the program may still average the
gradients by hand, or let DDP average them in a later backward. If the program calls a module inside
a wrapper whose own forward never ran, the wrapper is searched for in the variables of the calling
code, and then once among all live objects.

    forward of the wrapper        the next backward averages gradients, except under no_sync()
    forward of an inner module    no gradients are averaged
    optimizer's step              checks which forward the gradients came from
"""

from __future__ import annotations

from dataclasses import field
from types import FrameType

import torch
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from ...findings.rules.ranks.averages import DdpUnusedParameter, WrapperBypass
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, local_variables, user_frame
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.hooks.optimizers import Stepping, parameters_of
from ...internals.tensors.references import instances_of, subclasses_of
from ..listener import BackwardEnded, Listener
from ..program import Program
from ..program.variables import modules_of

_MAX_METHODS = 4  # frames of the user that are searched for a wrapper, innermost first


@mutable(eq=False)
class _Wrapper:
    """A DistributedDataParallel wrapper, and its forwards since the last step."""

    module: DistributedDataParallel
    name: str  # name of the wrapper's variable; "" if unknown
    parameters: dict[int, Parameter]  # the parameters that the wrapper synchronizes, by id()
    called: bool = False  # True if the wrapper's own forward ran
    passed: bool = False  # True if the program bypassed the wrapper: only an inner forward ran
    place: CodePosition | None = None  # the line that called the wrapper or the inner module
    waits: bool = False  # True if the wrapper averages only when all parameters have gradients
    reached: set[int] = field(default_factory=set)  # id() of parameters that backwards reached


class Wrappers(Listener):
    """Listener that reports bypassed DDP wrappers, and parameters without the awaited gradient."""

    needs = (
        "every_call",
        "is_distributed",
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._wrappers: dict[int, _Wrapper] = {}  # by id() of the wrapper and of its submodules
        self._running: Module | None = None  # the outermost module whose forward is running
        self._looked_for: set[int] = set()  # id() of modules for which no wrapper was found

    def on_module_start(self, event: ModuleBegan) -> None:
        module, outermost = event.module, self._running is None
        frame, known = event.frame, self._wrappers.get(id(module))
        if outermost and known is None:
            frame, known = self._wrapper_above(module, frame)
        if isinstance(module, DistributedDataParallel):
            known = known or self._take(module, "")
            if torch.is_grad_enabled():
                known.called, known.passed, known.reached = True, False, set()
                known.waits, known.place = _waits_for_all(module), self.program.place(event.frame)
        elif outermost and known is not None and torch.is_grad_enabled() and not known.called:
            known.passed, known.place = True, self.program.place(frame)
        if outermost:
            self._running = module

    def on_module_end(self, event: ModuleEnded) -> None:
        if self._running is event.module:
            self._running = None

    def on_backward_end(self, event: BackwardEnded) -> None:
        if event.backward.call.accumulates:
            for each in self._wrappers.values():
                each.reached |= event.backward.reached & each.parameters.keys()

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimized = {id(parameter) for parameter in parameters_of(event.optimizer)}
        for each in {id(each): each for each in self._wrappers.values()}.values():
            reached = each.reached & optimized
            if not reached:
                continue
            if each.passed:
                bypass = WrapperBypass(wrapper=each.name)
                self.events.note(bypass, each.place, leaves=reached)
            elif each.waits:
                parameters = each.parameters.items()
                lost = [p for key, p in parameters if key not in each.reached and p.grad is None]
                if lost:
                    names = tuple(self.program.table.names(lost))
                    self.events.note(DdpUnusedParameter(parameters=names), each.place)
            each.called = each.passed = each.waits = False
            each.reached = set()

    def on_step_end(self, event: None) -> None:
        self._wrappers = {}

    def close(self) -> None:
        self._wrappers, self._running = {}, None

    def _wrapper_above(
        self, module: Module, called: FrameType
    ) -> tuple[FrameType, _Wrapper | None]:
        """Return the frame that uses a module's DDP wrapper, and the wrapper (None without one).

        The variables of several calling frames are searched: if `ddp.module.loss(x)` calls
        `self(x)`, the frame with the variable `ddp` is outside of the frame that calls the module.

        Args:
            module: the module whose forward runs.
            called: the frame that calls the module.
        """
        frame: FrameType | None = called
        for _ in range(_MAX_METHODS):
            frame = user_frame(frame)
            if frame is None:
                break
            for name, value in modules_of(frame):
                if isinstance(value, DistributedDataParallel):
                    self._take(value, name)
            if id(module) in self._wrappers:
                return frame, self._wrappers[id(module)]
            frame = frame.f_back
        if id(module) not in self._looked_for:
            self._looked_for.add(id(module))
            for wrapper in instances_of(subclasses_of(DistributedDataParallel)):
                if any(each is module for each in wrapper.modules()):
                    self._looked_for.discard(id(module))
                    return _calling_frame(wrapper, called), self._take(wrapper, "")
        return called, None

    def _take(self, module: DistributedDataParallel, name: str) -> _Wrapper:
        known = self._wrappers.get(id(module))
        if known is None:
            left_out = getattr(module, "parameters_to_ignore", ())
            parameters = {
                id(parameter): parameter
                for name, parameter in module.module.named_parameters()
                if parameter.requires_grad and name not in left_out
            }
            known = _Wrapper(module, name, parameters)
            self._wrappers |= {id(each): known for each in module.modules()}
        return known


def _calling_frame(wrapper: DistributedDataParallel, called: FrameType) -> FrameType:
    """Return the innermost frame outside of a DDP wrapper's module; `called` if there is none."""
    inside = {id(each) for each in wrapper.modules()}
    frame: FrameType | None = user_frame(called)
    while frame is not None and id(local_variables(frame).get("self")) in inside:
        called, frame = frame, user_frame(frame.f_back)
    return called if frame is None else frame


def _waits_for_all(module: DistributedDataParallel) -> bool:
    """Return True if a DDP wrapper averages only once all its parameters have a gradient."""
    finds = module.find_unused_parameters or getattr(module, "static_graph", False)
    return module.require_backward_grad_sync and not finds
