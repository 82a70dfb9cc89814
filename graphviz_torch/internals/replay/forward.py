"""Run a recorded forward again, and collect the results of modules and of calls into torch.

A call into torch is a call that Python code makes, such as `F.layer_norm`. The results of kernels
inside such a call are not collected, because kernels depend on the memory layout of the tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...graph.immutable import NamedTuple
from ..compiled import is_compiled
from ..compiler.region_graph import CompiledOperation, compare_operations
from ..frames import CodePosition, leave_programs
from ..hooks.modules import ModuleEnded
from ..tensors.pytree import flatten, map_tensors, tensors
from .call import ModuleCall, RandomState, copy_nested
from .modules import RunningModules, code_positions
from .operators import operator_properties, written_by
from .sandbox import GeneratorStates, Sandbox

# A call whose name contains one of these has an uninitialized result.
_UNSET = ("empty", "resize", "set_")
_MAX_COMPILED_CALLS = 16  # maximum number of calls of compiled modules to inspect


class CallResult(NamedTuple):
    """The result of a call into torch."""

    name: str  # such as "layer_norm"
    tensors: tuple[Tensor, ...]  # the results themselves, not copies; they may be mutated later
    is_random: bool  # True if the call drew random numbers
    module: str  # path of the running module
    place: CodePosition | None  # innermost position outside of PyTorch and the standard library
    user_place: CodePosition | None  # innermost position in the user's own code


class ForwardResult(NamedTuple):
    """The result of a forward that was run again."""

    output: Any
    modules: tuple[tuple[str, Tensor, int], ...]  # (path, result, version counter of the result)
    error: BaseException | None


def run_forward(
    call: ModuleCall,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]] | None = None,
    *,
    training: Callable[[Module], bool] | None = None,
    eager: bool = True,
    each: Callable[[CallResult], object] | None = None,
    inside: Callable[[CompiledOperation], None] | None = None,
    budget: int = 1 << 28,
) -> ForwardResult:
    """Run a module's forward again, and collect the results of its modules up to `budget` bytes.

    Args:
        call: the module, its arguments, and the state in which it was called.
        change: called with copies of the arguments; returns replacements of tensors, by id() of the
            copy.
        training: returns the training mode of a module during the run; None to keep the modes.
        eager: True to run compiled functions eagerly.
        each: called with the result of each call into torch.
        inside: called with the compiled and the eager result of each operation in compiled modules.
        budget: at most this many bytes of module results are collected.
    """
    return copy_context().run(_run_forward, call, change, training, eager, each, inside, budget)


def _run_forward(
    call: ModuleCall,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]] | None,
    training: Callable[[Module], bool] | None,
    eager: bool,
    each: Callable[[CallResult], object] | None,
    inside: Callable[[CompiledOperation], None] | None,
    budget: int,
) -> ForwardResult:
    leave_programs()
    sandbox, results = (
        Sandbox(call.module, call.args, call.kwargs),
        _ModuleResults(call.module, budget),
    )
    output: Any = None
    error: BaseException | None = None
    with sandbox.restore_on_exit():
        args, kwargs = copy_nested(call.args), copy_nested(call.kwargs)
        with torch.no_grad():
            others = {} if change is None else change(args, kwargs)
            args, kwargs = map_tensors(lambda t: others.get(id(t), t), (args, kwargs))
            call.restore()
        if training is not None:
            for module in call.module.modules():
                module.training = training(module)
        watch: Any = _ProtectWrites(sandbox)
        if not eager or inside is not None:
            for parameter in call.module.parameters():
                sandbox.protect(parameter)
        if not eager:  # under a mode, compiled regions would be recompiled
            watch = nullcontext()
        for tensor in tensors(args, kwargs):
            sandbox.mark_created(tensor)
        calls: Any = nullcontext() if each is None else _CallObserver(results, each)
        # Compiled code is valid for one grad mode, and would be recompiled under another one.
        gradients = torch.set_grad_enabled(not eager)
        regions = None if inside is None else _CompiledCalls(call.module)
        try:
            with call.context(eager=eager), gradients, results, watch, calls:
                output = call.module(*args, **kwargs)
            if regions is not None and inside is not None:
                call.restore_buffers()
                with call.context(eager=False), torch.enable_grad():
                    regions.compare(inside)
        except Exception as raised:
            error = raised
    return ForwardResult(output, tuple(results.found), sandbox.refused or error)


class _CompiledCalls:
    """The calls of compiled modules in a forward, which module hooks observe.

    The hooks are removed when the modules' state is restored.
    """

    def __init__(self, module: Module) -> None:
        self._calls: list[tuple[Module, Any, Any, RandomState]] = []
        for each in [m for m in module.modules() if is_compiled(m)]:
            each.register_forward_pre_hook(self._on_compiled_call, with_kwargs=True)

    def _on_compiled_call(self, module: Module, args: Any, kwargs: Any) -> None:
        if len(self._calls) < _MAX_COMPILED_CALLS:
            self._calls.append((module, *copy_nested((args, kwargs)), RandomState.current()))

    def compare(self, inside: Callable[[CompiledOperation], None]) -> None:
        """Run each call again, and pass the results of its operations to `inside`."""
        for module, args, kwargs, state in self._calls:
            state.restore()
            compare_operations(module, args, kwargs, inside)


class _CallObserver(TorchFunctionMode):
    """Function mode that reports the result of each call into torch."""

    def __init__(self, modules: RunningModules, each: Callable[[CallResult], object]) -> None:
        super().__init__()
        self._modules, self._each = modules, each

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = GeneratorStates.save((), {}, [])
        result = func(*args, **(kwargs or {}))
        # The name of a custom operator ends with the overload, such as ".default".
        name = getattr(func, "__name__", "").partition(".")[0]
        made = tuple(t for _, t in flatten(result, ask=False))
        if made and not any(word in name for word in _UNSET):
            place, user_place, _ = code_positions(sys._getframe(1), _run_forward.__code__)
            drew = before.have_changed()
            self._each(CallResult(name, made, drew, self._modules.current()[0], place, user_place))
        return result


class _ProtectWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that saves tensors of the program before an operator mutates them."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sandbox = sandbox

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # DTensor then dispatches operators on its local tensors
        kind, kwargs = operator_properties(func), kwargs or {}
        for tensor in written_by(kind, func, args, kwargs):
            self._sandbox.protect(tensor)
        result = func(*args, **kwargs)
        if not kind.is_view and not kind.writes:
            for tensor in tensors(result):
                self._sandbox.mark_created(tensor)
        return result


class _ModuleResults(RunningModules):
    """The results of modules, collected up to `budget` bytes."""

    def __init__(self, root: Module, budget: int) -> None:
        super().__init__(root)
        self.found: list[tuple[str, Tensor, int]] = []
        self._budget = budget

    def _on_end(self, event: ModuleEnded) -> None:
        path = self.current()[0]
        super()._on_end(event)
        for _, tensor in flatten(event.output, ask=False):
            if tensor.is_floating_point() and tensor.nbytes <= self._budget:
                self._budget -= tensor.nbytes
                self.found.append((path, tensor.detach(), tensor._version))
