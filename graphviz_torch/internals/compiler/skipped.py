"""Find functions that Dynamo skips, so that Python runs them uncompiled.

If Dynamo meets code that it cannot compile, and cannot resume after this code because it is inside
a loop, for example, it skips the whole function from then on. It also skips PyTorch's own modules
unless compiled code calls them. Dynamo reports a skipped function once. Later, a skipped function
can only be recognized because Dynamo has seen its code and has no compiled code for it.

Uses private API (2.11 to 2.14): the code that Dynamo has seen, the compiled code for it, and the
rules that decide which code to skip.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import CodeType
from typing import Any

import torch
from torch.nn import Module

from ...graph.immutable import NamedTuple

_FORWARD = re.compile(r"forward|torch_dynamo_resume_in_forward_at_\d+")
_cache_entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list


class Skipped(NamedTuple):
    """A function that Dynamo skips: it runs eagerly instead of compiled."""

    code: CodeType
    line: int  # line where Dynamo stopped, or the first line if unknown
    reason: str  # Dynamo's message: the cause in the first line, then explanations; "" if unknown


def skipped_now(convert: Any, code: CodeType, error: Exception) -> Skipped | None:
    """Return the function that Dynamo skips because of `error`.

    Returns None if Dynamo raises the error in the program instead.

    Args:
        convert: Dynamo's frame converter that raised.
        code: code object of the function.
        error: the exception.
    """
    dynamo = import_module("torch._dynamo")
    soft = isinstance(error, (dynamo.exc.Unsupported, dynamo.exc.UserError))
    passed_on = convert._one_graph or convert._box.error_on_graph_break
    if passed_on or not (soft or dynamo.config.suppress_errors):
        return None
    cause = error.__cause__ if isinstance(error.__cause__, dynamo.exc.Unsupported) else error
    stack = getattr(cause, "real_stack", None) or ()
    own = [f.lineno for f in stack if (f.filename, f.name) == (code.co_filename, code.co_name)]
    return Skipped(code, (own or [None])[-1] or code.co_firstlineno, str(cause))


def skipped_before(function: Any) -> Skipped | None:
    """Return the forward of the module that a compiled function runs, if Dynamo has skipped it."""
    code = _forward(getattr(function, "__self__", None))
    dynamo = import_module("torch._dynamo.convert_frame")
    if code is None or code not in dynamo.input_codes or _cache_entries(code):
        return None
    return None if _is_in_skip_rules(code) else Skipped(code, code.co_firstlineno, "")


def is_skipped_entirely(function: Any) -> bool:
    """Return True if Dynamo skips the compiled module and all of its children.

    Returns False if other functions were compiled as well, since the module may call these.
    """
    module: Any = getattr(function, "__self__", None)
    code = _forward(module)
    if code is None or not (_is_in_skip_rules(code) or skipped_before(function)):
        return False
    inside = {_forward(each) for each in module.modules()}
    if any(each is None or _cache_entries(each) for each in inside):
        return False
    compiled = [*import_module("torch._dynamo.convert_frame").orig_code_map.values.values()]
    return all(_FORWARD.fullmatch(each.co_name) or not _cache_entries(each) for each in compiled)


def keeps_module_hooks(function: Any) -> bool:
    """Return True if global module hooks need not be removed while a compiled function runs.

    Hooks may stay if Dynamo has skipped the forward of the function's module and no module inside
    has hooks of its own, because no compiled code then checks for hooks.
    """
    module: Any = getattr(function, "__self__", None)
    return skipped_before(function) is not None and not any(map(_has_hooks, module.modules()))


def _has_hooks(module: Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _forward(module: Any) -> CodeType | None:
    if not isinstance(module, Module):
        return None
    code = getattr(module.forward, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_in_skip_rules(code: CodeType) -> bool:
    """Return True if Dynamo compiles this code object only as part of other code (inlined)."""
    return bool(import_module("torch._dynamo.trace_rules").check(code))
