"""The seam of functions that dynamo skips: it compiles nothing of them, and Python runs them.

Where it can neither compile a function nor go on behind a break, as in a loop, it leaves the whole
function to Python, from then on too. So it does with the code of PyTorch's own modules, where that
is not called by code that it compiles. It says so once, and keeps nothing that says so later but
that it has met a function, and has no code for it.

Private: the code that dynamo has met, what it made of it, and its rules of which it leaves alone
(2.11 to 2.14).
"""

from __future__ import annotations

import re
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.nn import Module

_FORWARD = re.compile(r"forward|torch_dynamo_resume_in_forward_at_\d+")
_cache_entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list


class Skipped(NamedTuple):
    """A function that dynamo skips."""

    code: CodeType
    line: int  # where it could not go on; the first one where that is not known
    reason: str  # dynamo's: a line on what it met, then explanations; "" where it is not known


def skipped_now(convert: Any, code: CodeType, error: Exception) -> Skipped | None:
    """A function that dynamo skips for an error of its own; None where the program gets the error.

    Args:
        convert: dynamo's, that raised it.
        code: of the function.
        error: what it raised.
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
    """The forward of the module that a compiled function runs, if dynamo has skipped that."""
    code = _forward(getattr(function, "__self__", None))
    dynamo = import_module("torch._dynamo.convert_frame")
    if code is None or code not in dynamo.input_codes or _cache_entries(code):
        return None
    return None if _is_left_alone(code) else Skipped(code, code.co_firstlineno, "")


def is_left_to_python(function: Any) -> bool:
    """Does dynamo leave to Python all that a compiled function runs: a module, and those inside.

    It does not, where code was compiled that is not known to be the forward of another module: that
    may be called here, too.
    """
    module: Any = getattr(function, "__self__", None)
    code = _forward(module)
    if code is None or not (_is_left_alone(code) or skipped_before(function)):
        return False
    inside = {_forward(each) for each in module.modules()}
    if any(each is None or _cache_entries(each) for each in inside):
        return False
    compiled = [*import_module("torch._dynamo.convert_frame").orig_code_map.values.values()]
    return all(_FORWARD.fullmatch(each.co_name) or not _cache_entries(each) for each in compiled)


def keeps_module_hooks(function: Any) -> bool:
    """Has dynamo skipped the forward of the module that a compiled function runs, and asks no code
    inside whether there are hooks: no module there has any of its own."""
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


def _is_left_alone(code: CodeType) -> bool:
    """Is it among the code that dynamo compiles nowhere but inside other code."""
    return bool(import_module("torch._dynamo.trace_rules").check(code))
