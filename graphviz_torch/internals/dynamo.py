"""Who else reads the program: a compiler, a tracer, a transform. It is kept off our own functions.

Where torch.compile meets something that it does not compile, it runs that as it is and compiles
every Python function called from there by itself: what watches the calls too, which would then be
made part of the user's graph.

Private: how a code object says so, at no cost to its calls; whether compiled autograd is on, which
would compile our hooks into the backward; whether torch.jit.trace is at work, how deep in
torch.func's transforms a call is, and the context that torch.compile runs its trial in (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import torch
from torch._guards import TracingContext

_Function = TypeVar("_Function", bound=Callable[..., Any])
_frames = torch._C._dynamo.eval_frame


def uncompiled(function: _Function) -> _Function:
    """The function, which is not compiled when it is called, and neither is what it calls."""
    return _skipped(function, _frames._FrameAction.SKIP)


def uncompiled_itself(function: _Function) -> _Function:
    """The function, which is not compiled when it is called; what it calls may be."""
    return _skipped(function, _frames._FrameAction.DEFAULT)


def uncompiled_hook(function: _Function) -> _Function:
    """A hook that PyTorch calls where dynamo compiles: it ends the region there, without a word."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return uncompiled(function)


def compiles_backward() -> bool:
    """Is a backward of this process compiled (`torch._dynamo.config.compiled_autograd`)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")  # loaded when it is first used
    return module is not None and bool(module.compiled_autograd_enabled)


_marks: list[tuple[CodeType, Any]] = []  # that functions of ours were given


def mark_again() -> None:
    """Give our functions their marks, which `torch._dynamo.reset()` takes from some of them."""
    for code, strategy in _marks:
        _frames.set_code_exec_strategy(code, strategy)


def _skipped(function: _Function, below: Any) -> _Function:
    strategy = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, below)
    _frames.set_code_exec_strategy(function.__code__, strategy)
    _marks.append((function.__code__, strategy))
    return function


# Is torch.jit.trace at work. It would note what we read, and our names for it.
is_jit_tracing: Any = torch._C._is_tracing


def is_trial() -> bool:
    """Is a backward torch.compile's trial of the program, or a part of a torch.func transform."""
    transformed = torch._C._functorch.maybe_current_level() is not None
    return transformed or TracingContext.try_get() is not None
