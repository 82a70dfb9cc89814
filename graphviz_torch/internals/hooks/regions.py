"""Disable our modes, dispatch keys and hooks while a compiled region runs, to avoid recompiles.

Code compiled by `torch.compile` is valid only under the function modes and dispatch keys that were
active when it was compiled. A call under other modes or keys recompiles it, which takes seconds to
minutes. The watches on calls and operators of a thread are therefore disabled when a region starts.
They are enabled again when the region ends, and in each uncompiled function inside, such as the
function that runs a compiled graph. Python code between two graphs of a region is not seen.

Global module hooks are removed as well, because compiled code of a module that has hooks of its own
checks for global hooks. There are two exceptions. If a module is compiled in place, Python calls
the module (and its layers, if it is one of PyTorch's containers) and therefore the hooks, which are
removed only during compilation. The same is true if Dynamo skips the forward of a module.

If Dynamo skips everything that a region runs, as with an LSTM, nothing is removed: Python runs the
region, and no compiled code checks guards.

Inside a region, Python also runs functions that are not part of the program: the garbage collector
calls finalizers at any time, and warnings are shown. Dynamo would compile these functions as part
of the program. Our check therefore makes Dynamo skip all frames of this package and of `weakref`.
The mark of `not_compiled` does not suffice, because Dynamo's `reset()` removes it from a function
that Dynamo has reached.

Uses private API (2.11 to 2.15):

    calls           three functions of Dynamo that compiled callables and disabled functions call;
                    the local variables of the callers, and the name of their code, "_fn"
    graphs          the name of a graph in Dynamo's code
    compilations    the flag that one is running, the callbacks at its start and end, the check
                    whether to skip a frame, the reasons of a recompilation, a frame's conversion

Dynamo may be imported while a watch is open.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CellType, CodeType, FrameType
from typing import Any, Protocol

from torch._guards import CompileContext
from torch.fx import GraphModule
from torch.nn import Module

from ...graph.immutable import NamedTuple
from ..compiler import dynamo_trace
from ..compiler.skipped import (
    Skipped,
    is_skipped_entirely,
    keeps_module_hooks,
    skipped_before,
    skipped_now,
)
from ..compiler.stance import is_forced_eager
from ..dynamo import not_compiled_itself, restore_marks
from ..exceptions import ignore_exceptions
from .calls import CallWatch
from .dispatch import disable_in_thread, enable_in_thread
from .modes import FUNCTIONS, arrange, movable
from .modules import ModuleWatch
from .watch import Replacement, Row
from .zero_grad import ZeroGradWatch

_DYNAMO = "torch._dynamo.eval_frame"
_RULES = "torch._dynamo.trace_rules"
_CONVERT_FRAME = "torch._dynamo.convert_frame"  # the last of these three modules to be imported
_FINALIZERS = weakref.finalize.__call__.__code__.co_filename
# File of `contextmanager`, which PyTorch uses when it passes a call to a mode.
_CONTEXTS = contextmanager.__code__.co_filename
_TUPLES = "<string>", "<lambda>"  # file and name of the function that creates a NamedTuple
_PACKAGE = str(Path(__file__).parents[2]) + os.sep


class GraphCallbacks(Protocol):
    """Callbacks for compiled callables, and for the graphs that compiled code calls."""

    def on_region_enter(self, given: tuple[Any, ...]) -> None:
        """Handle the start of a call of a compiled callable, with the arguments `given`.

        Our hooks are off until `on_region_exit`.
        """

    def on_region_exit(self) -> None:
        """Handle the end of the call, whether Dynamo compiled the callable or skipped it."""

    def on_graph_start(self, frame: FrameType, own: bool) -> None:
        """Handle a graph that Dynamo's code in `frame` is about to call; our hooks are off.

        `own` is True if the graph runs the program's operations one by one. It is False if a
        backend has compiled the graph.
        """

    def on_graph_result(self, args: tuple[Any, ...], result: Any) -> None:
        """Handle the arguments and the result of a compiled graph that returned."""

    def on_graph_end(self) -> None:
        """Handle the end of a compiled graph's call, after `on_graph_result`."""


class RegionWatch:
    """Context manager that hides our modes and dispatch keys from compiled regions.

    Args:
        trace: returns the callbacks for each graph that is compiled.
        graphs: returns the callbacks for all compiled callables; called once, when a compiled
            callable is called for the first time.
        skipped: called with each function that Dynamo skips.
    """

    def __init__(
        self,
        trace: Callable[[], dynamo_trace.Trace],
        graphs: Callable[[], GraphCallbacks | None] = lambda: None,
        skipped: Callable[[Skipped], object] = lambda _: None,
    ) -> None:
        self.trace, self._made, self.skipped = trace, graphs, skipped

    @cached_property
    def graphs(self) -> GraphCallbacks | None:
        """Callbacks for compiled callables, or None."""
        return self._made()

    def __enter__(self) -> RegionWatch:
        _forget_ended(sys._getframe(1))
        restore_marks()
        _INSTALLATION.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _INSTALLATION.discard(self)


class _Region(NamedTuple):
    """A compiled region that is running."""

    keeps_hooks: bool  # True if global module hooks stay, because Python runs the modules' calls
    inside: bool  # True if our modes were already off when the region started
    frame: int  # id() of Dynamo's frame around the region
    in_python: bool  # True if Dynamo skips everything that the region runs


class _RegionState(threading.local):
    """The compiled regions that a thread is running, and the modes switched off for them."""

    modes: tuple[Any, ...] = ()  # the stack of function modes before ours were removed
    away: bool = False  # True while our modes are off
    regions: tuple[_Region, ...] = ()  # the running regions, innermost last
    begins: bool = False  # True while a region is starting
    cell: CellType | None = None  # closure cell with the graph that Dynamo's code is calling
    graph: Any = None  # the original content of the cell


_thread_state = _RegionState()


def _disable_watches() -> None:
    if _thread_state.regions and _thread_state.regions[-1].in_python:
        return
    _thread_state.away = True
    modes = movable(FUNCTIONS)
    others = [mode for mode in modes if not isinstance(mode, CallWatch)]
    if len(others) < len(modes):
        _thread_state.modes = tuple(modes)
        arrange(FUNCTIONS, others)
    disable_in_thread()
    ZeroGradWatch.installation.suspend()
    if _thread_state.regions and not _thread_state.regions[-1].keeps_hooks:
        ModuleWatch.installation.suspend()


def _enable_watches() -> None:
    if CompileContext.try_get() is not None:
        return
    _thread_state.away = False
    modes, _thread_state.modes = _thread_state.modes, ()
    # A mode that has ended in the region has another class.
    ours = [mode for mode in modes if isinstance(mode, CallWatch)]
    if ours:
        others = movable(FUNCTIONS)
        theirs = [mode for mode in modes if not isinstance(mode, CallWatch)]
        arrange(FUNCTIONS, list(modes) if theirs == others else [*ours, *others])
    enable_in_thread()
    ZeroGradWatch.installation.refresh()
    ModuleWatch.installation.refresh()


def _forget_ended(frame: FrameType | None) -> None:
    """Remove compiled regions whose end was not reported (compiled autograd, an interrupt)."""
    if _thread_state.regions:
        around = set()
        while frame is not None:
            around.add(id(frame))
            frame = frame.f_back
        _thread_state.regions = tuple(
            region for region in _thread_state.regions if region.frame in around
        )
    if _thread_state.away and not _thread_state.regions:
        _restore_graph()
        _thread_state.begins = False
        _enable_watches()


# The next three functions wrap functions of Dynamo. Compiled callables and disabled functions call
# these functions in this order:
#
#   compiled callable    1. `_is_skip_guard_eval_unsafe_stance`, before it reads the dispatch keys
#                        2. `_maybe_set_eval_frame` with its compiler; then the region runs
#                        3. `_maybe_set_eval_frame` with the earlier callback (None if outermost)
#   disabled function    1. `set_eval_frame`; then the function runs, and Dynamo is off
#                        2. `_maybe_set_eval_frame` with the earlier callback


def _wrap_region_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_compiled_itself
    def _is_skip_guard_eval_unsafe_stance() -> Any:
        frame = sys._getframe(1)
        _forget_ended(frame.f_back)
        function = frame.f_locals.get("fn")
        in_place = getattr(function, "__func__", None) is Module._call_impl
        keeps_hooks = in_place or _answer_or_false(keeps_module_hooks, function)
        # With the stance "force_eager", PyTorch would run the region under the current dispatch
        # keys, which include ours.
        in_python = not _thread_state.away and (
            is_forced_eager() or _answer_or_false(is_skipped_entirely, function)
        )
        _thread_state.regions = (
            *_thread_state.regions,
            _Region(keeps_hooks, _thread_state.away, id(frame), in_python),
        )
        _thread_state.begins = True
        with ignore_exceptions():
            _notify_skipped(skipped_before(function))
        if not (_thread_state.away or in_python):
            given = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})
            for watch in _INSTALLATION.watchers:
                if watch.graphs is not None:
                    watch.graphs.on_region_enter(given)
        _disable_watches()
        return original()

    return _is_skip_guard_eval_unsafe_stance


def _wrap_region_end(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_compiled_itself
    def _maybe_set_eval_frame(callback: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_fn":
            if callback is not None:
                _restore_graph()
            for watch in _INSTALLATION.watchers if callback is not None else ():
                if watch.graphs is not None:
                    watch.graphs.on_graph_end()
        elif _thread_state.begins:
            _thread_state.begins = False
            if callback is None:  # Dynamo compiles nothing
                _enable_watches()
        else:
            ended, _thread_state.regions = _thread_state.regions[-1:], _thread_state.regions[:-1]
            if not any(region.inside for region in ended):
                _enable_watches()
                for watch in _INSTALLATION.watchers if ended else ():
                    if watch.graphs is not None:
                        watch.graphs.on_region_exit()
        if callback is not None:
            _disable_watches()
        return original(callback)

    return _maybe_set_eval_frame


def _wrap_uncompiled_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_compiled_itself
    def _set_eval_frame(callback: Any) -> Any:
        before = original(callback)
        caller = sys._getframe(1)
        if before is not None and caller.f_code.co_name == "_fn":
            frame = caller.f_back
            function: Any = caller.f_locals.get("fn")
            cell = None if frame is None else _graph_of(frame, function)
            if frame is not None and cell is not None:
                own = isinstance(getattr(function, "__self__", None), GraphModule)
                for watch in _INSTALLATION.watchers:
                    if watch.graphs is not None:
                        watch.graphs.on_graph_start(frame, own)
                _intercept_graph(cell, function)
            _enable_watches()
        return before

    return _set_eval_frame


def _graph_of(frame: FrameType, function: Any) -> CellType | None:
    """Return the closure cell that contains the compiled graph to call; None for other calls.

    Args:
        frame: the frame that calls `function`.
        function: a function that Dynamo does not compile, which may be a graph.
    """
    for name in frame.f_code.co_names:
        if name.startswith("__compiled_fn"):
            caller: Any = frame.f_globals.get(name)
            if getattr(caller, "_torchdynamo_orig_callable", None) is function:
                place = caller.__code__.co_freevars.index("fn")
                found: CellType = caller.__closure__[place]
                return found
    return None


def _intercept_graph(cell: CellType, graph: Callable[..., Any]) -> None:
    """Replace a compiled graph so that its next call reports its arguments and result.

    Args:
        cell: the closure cell that contains the graph.
        graph: the graph, as a function.
    """

    def run(*args: Any) -> Any:
        result = graph(*args)
        if _thread_state.cell is cell:
            for watch in _INSTALLATION.watchers:
                if watch.graphs is not None:
                    watch.graphs.on_graph_result(args, result)
        return result

    _restore_graph()
    cell.cell_contents, _thread_state.cell, _thread_state.graph = run, cell, graph


def _restore_graph() -> None:
    """Put the original compiled graph back into its closure cell."""
    cell, _thread_state.cell = _thread_state.cell, None
    if cell is not None:
        cell.cell_contents, _thread_state.graph = _thread_state.graph, None


def _wrap_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    def _convert(self: Any, frame: Any, *args: Any, **more: Any) -> Any:
        # Dynamo has skipped all earlier frames of this region, and is about to compile one.
        if _thread_state.regions and _thread_state.regions[-1].in_python:
            region = _thread_state.regions[-1]._replace(in_python=False, keeps_hooks=True)
            _thread_state.regions = (*_thread_state.regions[:-1], region)
            _disable_watches()
        try:
            result = original(self, frame, *args, **more)
        except Exception as error:
            with ignore_exceptions():
                _notify_skipped(skipped_now(self, frame.f_code, error))
            _check_skipped()
            raise
        if result.guarded_code is None:
            _check_skipped()
        return result

    return _convert


def _notify_skipped(skipped: Skipped | None) -> None:
    if skipped is not None:
        for watch in _INSTALLATION.watchers:
            watch.skipped(skipped)


def _answer_or_false(question: Callable[[Any], bool], function: Any) -> bool:
    try:
        return question(function)
    except Exception:  # with the answer False, our hooks are removed
        return False


def _check_skipped() -> None:
    """Enable our hooks again if Dynamo skips all functions in the innermost compiled region."""
    region = _thread_state.regions[-1] if _thread_state.regions else None
    if region is None or region.inside or region.in_python:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != region.frame:
        frame = frame.f_back
    if frame is not None and _answer_or_false(is_skipped_entirely, frame.f_locals.get("fn")):
        _thread_state.regions = (*_thread_state.regions[:-1], region._replace(in_python=True))
        _enable_watches()


def _wrap_skip_check(original: Callable[..., Any]) -> Callable[..., Any]:
    def _check(what: Any, is_inlined_call: bool = False, **more: Any) -> Any:
        if isinstance(what, CodeType) and not is_inlined_call:
            file = what.co_filename
            if file == _FINALIZERS or file.startswith(_PACKAGE):
                return True
            in_python = _thread_state.regions and _thread_state.regions[-1].in_python
            if in_python and (file == _CONTEXTS or (file, what.co_name) == _TUPLES):
                return True
        return original(what, is_inlined_call, **more)

    return _check


def _wrap_recompilation_reasons(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_and_maybe_log_recompilation_reasons(
        entries: Any, frame: Any, *args: Any, **more: Any
    ) -> Any:
        reasons = original(entries, frame, *args, **more)
        if reasons and not more.get("skip_logging"):
            with ignore_exceptions():  # `reasons` has an item for each earlier compilation
                dynamo_trace.record_recompile(frame.f_code, str(reasons[0]), len(reasons))
        return reasons

    return _get_and_maybe_log_recompilation_reasons


_WRAPPERS: list[tuple[str, str, Callable[..., Any]]] = [  # (module, function, wrapper)
    (_DYNAMO, "_is_skip_guard_eval_unsafe_stance", _wrap_region_start),
    (_DYNAMO, "_maybe_set_eval_frame", _wrap_region_end),
    (_DYNAMO, "set_eval_frame", _wrap_uncompiled_call),
    (_RULES, "check", _wrap_skip_check),  # decides whether to skip a frame
    (
        _CONVERT_FRAME,
        "get_and_maybe_log_recompilation_reasons",
        _wrap_recompilation_reasons,
    ),
]


def _rows() -> list[Row]:
    if _CONVERT_FRAME not in sys.modules:
        return []
    converter = import_module(_CONVERT_FRAME).ConvertFrameAssert
    rows = [(import_module(place), name, wrap) for place, name, wrap in _WRAPPERS]
    return [*rows, (converter, "__call__", _wrap_conversion)]


def _begin(*_: object) -> None:
    ModuleWatch.installation.suspend()
    for watch in _INSTALLATION.watchers[-1:]:
        dynamo_trace.begin_compilation(watch.trace)


def _end(*_: object) -> None:
    dynamo_trace.end_compilation()
    if not _thread_state.regions or _thread_state.regions[-1].keeps_hooks:
        ModuleWatch.installation.refresh()


def _compilations() -> Any:
    """Return the handler of compilation callbacks; `torch._dynamo.reset()` clears it."""
    return import_module("torch._dynamo.callback").callback_handler


class _Import(MetaPathFinder):
    """Import hook that notices when Dynamo is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of Dynamo's module, with a loader that also installs our patch.

        For other modules the result is None.
        """
        if name != _CONVERT_FRAME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_install(module: Any) -> None:
                load(module)
                _INSTALLATION.refresh()

            spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


_import = _Import()


def _install() -> None:
    if _CONVERT_FRAME not in sys.modules:
        if _import not in sys.meta_path:
            sys.meta_path.insert(0, _import)
        return
    handler = _compilations()
    if _begin not in handler.start_callbacks:
        handler.start_callbacks.append(_begin)
    if _end not in handler.end_callbacks:
        handler.end_callbacks.append(_end)


def _remove() -> None:
    if _import in sys.meta_path:
        sys.meta_path.remove(_import)
    if _CONVERT_FRAME not in sys.modules:
        return
    handler = _compilations()
    for told, ours in (handler.start_callbacks, _begin), (handler.end_callbacks, _end):
        if ours in told:
            told.remove(ours)


_INSTALLATION = Replacement[RegionWatch](_rows, _install, _remove)
