"""The seam that traces a compiled function's code once more, on tensors without memory.

Dynamo keeps code of Python's that calls the compiled graph, and not the graph that it traced. The
arguments of that code are all that dynamo needs to trace the program's own again. Nothing is
compiled, and dynamo's counts, the random state and the globals of the program are as before.

Private: which code dynamo's came from, what traces a frame, and what has to be there while it does
(2.13).
"""

from __future__ import annotations

import builtins
import inspect
import re
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from types import CellType, CodeType, FrameType
from typing import Any

import torch

from ..frames import variables
from ..hooks.modules import take_off
from . import traces

_OF_DYNAMO = re.compile(r"__(builtins_dict|compiled_fn|import|resume)_.*|_.*_c\d+")  # its globals
_met: dict[int, weakref.ref[CodeType]] = {}  # dynamo's code that has run while recorded, by id()


def trace_again(frame: FrameType, new: Callable[[], traces.Trace]) -> None:
    """Trace what this frame was compiled from, if it is the first time that it is met.

    Hooks on all modules are off afterwards.

    Args:
        frame: runs dynamo's code, and is about to call a compiled graph.
        new: makes what is told of the graph.
    """
    code, key = frame.f_code, id(frame.f_code)
    if key in _met:
        return
    original = import_module("torch._dynamo.convert_frame").orig_code_map.get(code)
    if original is None:  # not dynamo's
        return
    _met[key] = weakref.ref(code, lambda _: _met.pop(key, None))
    if traces.is_new(original) or torch._C._len_torch_dispatch_stack():
        return  # it was told while it was compiled; or a mode of the program's would see it
    counters = import_module("torch._dynamo.utils").counters
    counts = {name: dict(counted) for name, counted in counters.items()}
    known = set(frame.f_globals)
    take_off()
    try:
        traces.begin(new, again=True)
        _run(original, frame)
    except traces.Whole:
        pass
    finally:
        traces.end()
        counters.clear()
        for name, counted in counts.items():
            counters[name].update(counted)
        for name in set(frame.f_globals) - known:
            if _OF_DYNAMO.fullmatch(name):
                del frame.f_globals[name]


def _run(code: CodeType, frame: FrameType) -> None:
    """Let dynamo trace this code, with the arguments of the frame that stands for it."""
    dynamo, guards = import_module("torch._dynamo.convert_frame"), import_module("torch._guards")
    metrics = import_module("torch._dynamo.utils").get_metrics_context
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = (*code.co_varnames[:count], *code.co_freevars)
    values = dict(zip(names, variables(frame, *names), strict=True))

    def trace() -> None:
        dynamo.compile_frame(
            code,
            frame.f_globals,
            values,
            vars(builtins),
            tuple(CellType(values[name]) for name in code.co_freevars),
            compiler_fn=_compile,
            one_graph=False,
            restart_reasons=set(),
        )

    number = guards.CompileId(frame_id=0, frame_compile_id=0)
    with ExitStack() as around:
        around.enter_context(guards.compile_context(guards.CompileContext(number)))
        around.enter_context(metrics())
        around.enter_context(dynamo.torch_function_mode_stack_state_mgr)
        dynamo.preserve_global_state(trace)()


def _compile(graph: Any, inputs: Any) -> Any:
    raise traces.Whole
