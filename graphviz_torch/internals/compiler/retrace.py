"""Trace a function that is already compiled again, on fake tensors, to get its graph.

Dynamo keeps the code that it generated, which calls the compiled graph, but not the traced graph.
When the generated code runs, Dynamo can trace the original function again with the same arguments.
Nothing is compiled, and Dynamo's counters, the random state and the program's globals are restored.

Uses private API (2.13): the table from Dynamo's code to the user's code, the function that traces a
frame, and the state that this function needs.
"""

from __future__ import annotations

import builtins
import inspect
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import CellType, CodeType, FrameType
from typing import Any

import torch

from ..frames import frame_variables
from ..hooks.modules import ModuleWatch
from . import dynamo_trace

# Names of the globals that Dynamo adds to a module of the program.
_OF_DYNAMO = re.compile(r"__(builtins_dict|compiled_fn|import|resume)_.*|_.*_c\d+")
# id() of a generated code object that has run while recording -> the code object, its trace.
_traces: dict[int, tuple[weakref.ref[CodeType], dynamo_trace.Trace | None]] = {}


def original_code(frame: FrameType) -> CodeType | None:
    """Return the user's code from which Dynamo generated a frame's code; None for other code."""
    code: CodeType | None = _dynamo().orig_code_map.get(frame.f_code)
    return code


def trace_again(
    frame: FrameType, new: Callable[[], dynamo_trace.Trace]
) -> dynamo_trace.Trace | None:
    """Trace the graph that a compiled frame calls, unless this was done before; return the trace.

    Our global module hooks are removed for the trace, and remain removed.

    Args:
        frame: a frame of Dynamo's generated code that is about to call a compiled graph.
        new: creates the callbacks for a graph.
    """
    code, key = original_code(frame), id(frame.f_code)
    if key not in _traces:
        if code is None or torch._C._len_torch_dispatch_stack():
            return None  # the program's dispatch modes would see the traced operations
        trace = dynamo_trace.new_trace(code) or _trace(code, frame, new)
        _traces[key] = weakref.ref(frame.f_code, lambda _: _traces.pop(key, None)), trace
    return _traces[key][1]


def _trace(
    code: CodeType, frame: FrameType, new: Callable[[], dynamo_trace.Trace]
) -> dynamo_trace.Trace | None:
    """Trace a function again with its current arguments; return None if Dynamo cannot do so.

    Args:
        code: code object of the function.
        frame: frame of the code that Dynamo generated from it, which has the arguments.
        new: creates the callbacks for a graph.
    """
    found = list[dynamo_trace.Trace]()

    def new_trace() -> dynamo_trace.Trace:  # called again if Dynamo restarts a graph
        found.append(new())
        return found[-1]

    known = set(frame.f_globals)
    ModuleWatch.installation.suspend()
    with restored_counters():
        try:
            dynamo_trace.begin_compilation(new_trace, again=True)
            _run(code, frame)
        except dynamo_trace.TraceComplete:
            return found[-1] if found else None
        except Exception:  # the region is shown without its operations
            return None
        finally:
            dynamo_trace.end_compilation()
            for name in set(frame.f_globals) - known:
                if _OF_DYNAMO.fullmatch(name):
                    del frame.f_globals[name]
    return None


@contextmanager
def restored_counters() -> Iterator[None]:
    """Restore Dynamo's counters at the end of this context."""
    counters = import_module("torch._dynamo.utils").counters
    counts = {name: dict(counted) for name, counted in counters.items()}
    try:
        yield
    finally:
        counters.clear()
        for name, counted in counts.items():
            counters[name].update(counted)


def _run(code: CodeType, frame: FrameType) -> None:
    """Make Dynamo trace `code` with the arguments in `frame`.

    Args:
        code: code object of the user's function.
        frame: the frame that runs the code that Dynamo generated from `code`.
    """
    dynamo, guards = _dynamo(), import_module("torch._guards")
    metrics = import_module("torch._dynamo.utils").get_metrics_context
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = (*code.co_varnames[:count], *code.co_freevars)
    values = dict(zip(names, frame_variables(frame, *names), strict=True))

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


def _dynamo() -> Any:
    return import_module("torch._dynamo.convert_frame")


def _compile(graph: Any, inputs: Any) -> Any:
    raise dynamo_trace.TraceComplete
