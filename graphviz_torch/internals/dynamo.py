"""Keep compilers, tracers and transforms of the user's program away from this package's functions.

When torch.compile reaches code that it does not compile, it runs this code in Python, and compiles
each Python function that the code calls. It would therefore compile our callbacks into the user's
graph, if they were not marked here.

Uses private PyTorch API (2.13): the mark that excludes a code object from compilation at no cost
per call, the flag of compiled autograd (which would compile our hooks into the backward), the flag
of torch.jit.trace, the nesting level of torch.func transforms, and the context in which
torch.compile runs the program on fake tensors.
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


def not_compiled(function: _Function) -> _Function:
    """Mark `function` so that neither it nor any function it calls is compiled; return it."""
    return _mark(function, _frames._FrameAction.SKIP)


def not_compiled_itself(function: _Function) -> _Function:
    """Mark `function` so that it is not compiled, while functions it calls may be; return it."""
    return _mark(function, _frames._FrameAction.DEFAULT)


def not_compiled_hook(function: _Function) -> _Function:
    """Mark a hook that compiled code may call, and return it.

    Dynamo then breaks the graph at the hook without logging a message.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return not_compiled(function)


def compiles_backward() -> bool:
    """Return True if Dynamo's `config.compiled_autograd` is on in this process."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")  # the module is loaded on first use
    return module is not None and bool(module.compiled_autograd_enabled)


_marks: dict[CodeType, Any] = {}  # code of a marked function -> its mark, for `restore_marks`


def restore_marks() -> None:
    """Mark this package's functions again: `torch._dynamo.reset()` removes some of the marks."""
    for code, strategy in _marks.items():
        _frames.set_code_exec_strategy(code, strategy)


def _mark(function: _Function, below: Any) -> _Function:
    strategy = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, below)
    _frames.set_code_exec_strategy(function.__code__, strategy)
    _marks[function.__code__] = strategy
    return function


# Returns True while torch.jit.trace runs, which would record our reads of tensors.
is_jit_tracing: Any = torch._C._is_tracing


def is_trial() -> bool:
    """Return True if the program is not really running, but is being transformed or traced.

    This is the case inside a torch.func transform, and while Dynamo runs the program on fake
    tensors.
    """
    transformed = torch._C._functorch.maybe_current_level() is not None
    return transformed or TracingContext.try_get() is not None
