"""Run a module's forward again on its own, and collect results of modules and of calls into torch.

A call into torch is one made in Python, such as `F.layer_norm`. The kernels that it calls are not
collected, because they depend on the memory layout of the tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..compiled import is_compiled
from ..compiler.region_graph import CompiledOperation, compare_operations
from ..frames import CodePosition, leave_programs
from ..hooks.modules import ModuleEnded
from ..tensors.pytree import flatten, map_tensors, tensors
from .call import Call, RandomState, copied
from .modules import RunningModules, places
from .operators import kind_of, written_by
from .streams import Streams
from .world import World

# Their results are uninitialized.
_UNSET = ("empty", "resize", "set_")
_MOST = 16  # calls of compiled modules that are inspected


class Made(NamedTuple):
    """The result of a call into torch."""

    name: str  # "layer_norm"
    tensors: tuple[Tensor, ...]  # the result itself, which may be mutated later
    is_random: bool  # True if the call drew random numbers
    module: str  # path of the running module
    place: CodePosition | None  # innermost position outside of PyTorch and the standard library
    user_place: CodePosition | None  # innermost position in the user's own code


class Plain(NamedTuple):
    """The result of a forward that was run again."""

    output: Any
    modules: tuple[tuple[str, Tensor, int], ...]  # path, result and version counter of the result
    error: BaseException | None


def run_plainly(
    call: Call,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]] | None = None,
    *,
    training: Callable[[Module], bool] | None = None,
    eager: bool = True,
    each: Callable[[Made], object] | None = None,
    inside: Callable[[CompiledOperation], None] | None = None,
    budget: int = 1 << 28,
) -> Plain:
    """Run a module's forward again, and collect the results of its modules up to `budget` bytes.

    Args:
        call: the module, its arguments, and the state in which it was called.
        change: called with copies of the arguments; returns replacements of tensors by `id()`.
        training: the training mode of each module during the run; None leaves it as it is.
        eager: run compiled functions eagerly.
        each: called with the result of each call into torch.
        inside: called with each operation of compiled modules, with its compiled and eager results.
        budget: total bytes of the modules' results.
    """
    return copy_context().run(_run_plainly, call, change, training, eager, each, inside, budget)


def _run_plainly(
    call: Call,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]] | None,
    training: Callable[[Module], bool] | None,
    eager: bool,
    each: Callable[[Made], object] | None,
    inside: Callable[[CompiledOperation], None] | None,
    budget: int,
) -> Plain:
    leave_programs()
    world, results = World(call.module, call.args, call.kwargs), _Results(call.module, budget)
    output: Any = None
    error: BaseException | None = None
    with world.as_before():
        args, kwargs = copied(call.args), copied(call.kwargs)
        with torch.no_grad():
            others = {} if change is None else change(args, kwargs)
            args, kwargs = map_tensors(lambda t: others.get(id(t), t), (args, kwargs))
            call.put()
        if training is not None:
            for module in call.module.modules():
                module.training = training(module)
        watch: Any = _Writes(world)
        if not eager or inside is not None:
            for parameter in call.module.parameters():
                world.protect(parameter)
        if not eager:  # a mode would cause compiled regions to be recompiled
            watch = nullcontext()
        for tensor in tensors(args, kwargs):
            world.own(tensor)
        calls: Any = nullcontext() if each is None else _Calls(results, each)
        # Compiled code is guarded on the grad mode: another one would recompile it.
        gradients = torch.set_grad_enabled(not eager)
        regions = None if inside is None else _Compiled(call.module)
        try:
            with call.context(eager=eager), gradients, results, watch, calls:
                output = call.module(*args, **kwargs)
            if regions is not None and inside is not None:
                call.put_buffers()
                with call.context(eager=False), torch.enable_grad():
                    regions.look(inside)
        except Exception as raised:
            error = raised
    return Plain(output, tuple(results.found), world.refused or error)


class _Compiled:
    """The calls of compiled modules in a forward; its hooks are removed when state is restored."""

    def __init__(self, module: Module) -> None:
        self._calls: list[tuple[Module, Any, Any, RandomState]] = []
        for each in [m for m in module.modules() if is_compiled(m)]:
            each.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: Module, args: Any, kwargs: Any) -> None:
        if len(self._calls) < _MOST:
            self._calls.append((module, *copied((args, kwargs)), RandomState.now()))

    def look(self, inside: Callable[[CompiledOperation], None]) -> None:
        """Inspect each of the modules with its recorded arguments."""
        for module, args, kwargs, state in self._calls:
            state.put()
            compare_operations(module, args, kwargs, inside)


class _Calls(TorchFunctionMode):
    """Function mode that reports the result of each call into torch."""

    def __init__(self, modules: RunningModules, each: Callable[[Made], object]) -> None:
        super().__init__()
        self._modules, self._each = modules, each

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = Streams.of((), {}, [])
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").partition(".")[0]  # "square_rows.default"
        made = tuple(t for _, t in flatten(result, ask=False))
        if made and not any(word in name for word in _UNSET):
            place, user_place, _ = places(sys._getframe(1), _run_plainly.__code__)
            drew = before.differ()
            self._each(Made(name, made, drew, self._modules.now()[0], place, user_place))
        return result


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that saves tensors of the program before an operator mutates them."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, world: World) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._world = world

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # its local tensors are dispatched in turn
        kind, kwargs = kind_of(func), kwargs or {}
        for tensor in written_by(kind, func, args, kwargs):
            self._world.protect(tensor)
        result = func(*args, **kwargs)
        if not kind.is_view and not kind.writes:
            for tensor in tensors(result):
                self._world.own(tensor)
        return result


class _Results(RunningModules):
    """Collects the results of modules, up to a number of bytes."""

    def __init__(self, root: Module, budget: int) -> None:
        super().__init__(root)
        self.found: list[tuple[str, Tensor, int]] = []
        self._budget = budget

    def _ended(self, event: ModuleEnded) -> None:
        path = self.now()[0]
        super()._ended(event)
        for _, tensor in flatten(event.output, ask=False):
            if tensor.is_floating_point() and tensor.nbytes <= self._budget:
                self._budget -= tensor.nbytes
                self.found.append((path, tensor.detach(), tensor._version))
