"""The seam of compiled regions: while one runs, nothing of ours is there that its code looks at.

What `torch.compile` made of a function holds for the function modes and the dispatch keys that were
there when it was made. A call that finds others compiles it again, which takes seconds to minutes.
So what watches the calls and operators of a thread is taken away where a region begins. It is put
back where the region ends, and in each function inside that is not compiled, such as the one that
runs a compiled graph. What Python does by itself between two graphs of a region is not seen.

Hooks on all modules are taken away with them, for code of a module that has a hook of its own looks
whether there are any on all. Where a module was compiled in place they go only while something is
compiled: Python itself runs its `_call_impl`, and that of its layers if it is a container of
PyTorch's, and calls the hooks there. So it is where dynamo skips the forward of a module.

Where dynamo skips all that a region runs, as it does with an LSTM, nothing of ours is taken away:
Python runs it, so no compiled code looks whether there are hooks.

Python runs more there than the program: the collector comes when it likes, and calls the finalizers
of what it frees; a warning is shown. Dynamo compiles what these call, as if it were the program's.
So it is told to leave every frame of this package and of `weakref` as it is. It would also forget
what `uncompiled` says of a function, at the next `reset()` after it came to it once.

Private: three functions that are called by every compiled callable and by every function that is
not compiled, whose name is "_fn"; which function that calls, and what dynamo's code calls a graph;
whether something is being compiled; who is told that this begins and ends; the questions whether a
frame is compiled, and why once more; what is made of a frame (2.11 to 2.15). Dynamo may be loaded
while somebody watches.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CellType, CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from torch._guards import CompileContext
from torch.fx import GraphModule
from torch.nn import Module

from ..compiler import traces
from ..compiler.skipped import (
    Skipped,
    is_left_to_python,
    keeps_module_hooks,
    skipped_before,
    skipped_now,
)
from ..compiler.stance import runs_as_written
from ..dynamo import mark_again, uncompiled_itself
from .calls import CallWatch
from .dispatch import switch_back, switch_on
from .modes import FUNCTIONS, arrange, movable
from .modules import take_off, take_on
from .watch import Installation

_DYNAMO = "torch._dynamo.eval_frame"
_RULES = "torch._dynamo.trace_rules"
_LAST = "torch._dynamo.convert_frame"  # when it is loaded, the others are
_FINALIZERS = weakref.finalize.__call__.__code__.co_filename
_CONTEXTS = contextmanager.__code__.co_filename  # PyTorch enters some where a mode sees a call
_TUPLES = "<string>", "<lambda>"  # a function that makes a NamedTuple
_PACKAGE = str(Path(__file__).parents[2]) + os.sep


class Graphs(Protocol):
    """What is told of compiled callables, and of the graphs that compiled code calls."""

    def entered(self, given: tuple[Any, ...]) -> None:
        """A compiled callable is called with this: nothing of ours is there until it is left."""

    def left(self) -> None:
        """It has run, whether dynamo has compiled it or leaves it to Python."""

    def began(self, frame: FrameType, own: bool) -> None:
        """This frame of dynamo's code is about to call one; nothing of ours is there. Is it the
        program's own, operation by operation; else what a compiler made of it."""

    def gave(self, args: tuple[Any, ...], result: Any) -> None:
        """It was given this, and has given that."""

    def ended(self) -> None:
        """It has run."""


class RegionWatch:
    """A context in which compiled regions find the modes and keys of the program without ours.

    Args:
        trace: makes what is told of each graph that is compiled.
        graphs: makes, when a compiled callable is first called, what is told of each.
        skipped: is told of each function that dynamo skips.
    """

    def __init__(
        self,
        trace: Callable[[], traces.Trace],
        graphs: Callable[[], Graphs | None] = lambda: None,
        skipped: Callable[[Skipped], object] = lambda _: None,
    ) -> None:
        self.trace, self._made, self.skipped = trace, graphs, skipped

    @cached_property
    def graphs(self) -> Graphs | None:
        """What is told of compiled callables; None: nobody."""
        return self._made()

    def __enter__(self) -> RegionWatch:
        _forget_ended(sys._getframe(1))
        mark_again()
        _INSTALLATION.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _INSTALLATION.discard(self)


class _Region(NamedTuple):
    """A region that runs."""

    keeps_hooks: bool  # do hooks on all modules stay: Python runs those that it calls
    inside: bool  # was what is ours away already when it began
    frame: int  # id() of dynamo's frame around it
    in_python: bool  # does dynamo skip all that it runs


class _Here(threading.local):
    """What belongs to the thread that asks."""

    modes: tuple[Any, ...] = ()  # the function modes as they stood before ours were taken away
    away: bool = False  # is what is ours taken away
    regions: tuple[_Region, ...] = ()  # those around, the innermost last
    begins: bool = False  # a region does
    cell: CellType | None = None  # where the graph stands that is called
    graph: Any = None  # it


_here = _Here()


def _take_away() -> None:
    if _here.regions and _here.regions[-1].in_python:
        return
    _here.away = True
    modes = movable(FUNCTIONS)
    others = [mode for mode in modes if not isinstance(mode, CallWatch)]
    if len(others) < len(modes):
        _here.modes = tuple(modes)
        arrange(FUNCTIONS, others)
    switch_back()
    if _here.regions and not _here.regions[-1].keeps_hooks:
        take_off()


def _put_back() -> None:
    if CompileContext.try_get() is not None:
        return
    _here.away = False
    modes, _here.modes = _here.modes, ()
    ours = [mode for mode in modes if isinstance(mode, CallWatch)]  # which one that ended is not
    if ours:
        others = movable(FUNCTIONS)
        theirs = [mode for mode in modes if not isinstance(mode, CallWatch)]
        arrange(FUNCTIONS, list(modes) if theirs == others else [*ours, *others])
    switch_on()
    take_on()


def _forget_ended(frame: FrameType | None) -> None:
    """Leave the regions whose end was not told: of compiled autograd, and after an interrupt."""
    if _here.regions:
        around = set()
        while frame is not None:
            around.add(id(frame))
            frame = frame.f_back
        _here.regions = tuple(region for region in _here.regions if region.frame in around)
    if _here.away and not _here.regions:
        _let_go()
        _here.begins = False
        _put_back()


# A compiled callable calls the first of these before it notes the dispatch keys. Then it calls the
# second with its compiler, and at its end with what was there before: None outside. A function that
# is not compiled calls the third at its begin, and the second at its end. Dynamo is off while the
# rest of these runs.


@uncompiled_itself
def _is_skip_guard_eval_unsafe_stance() -> Any:
    frame = sys._getframe(1)
    _forget_ended(frame.f_back)
    function = frame.f_locals.get("fn")
    in_place = getattr(function, "__func__", None) is Module._call_impl
    keeps_hooks = in_place or _answer(keeps_module_hooks, function)
    # As written, PyTorch would force the keys on it that stand here: ours among them.
    in_python = not _here.away and (runs_as_written() or _answer(is_left_to_python, function))
    _here.regions = (*_here.regions, _Region(keeps_hooks, _here.away, id(frame), in_python))
    _here.begins = True
    with suppress(Exception):
        _tell(skipped_before(function))
    if not (_here.away or in_python):
        given = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})
        for watch in _INSTALLATION.watchers:
            if watch.graphs is not None:
                watch.graphs.entered(given)
    _take_away()
    return _THEIRS["_is_skip_guard_eval_unsafe_stance"]()


@uncompiled_itself
def _maybe_set_eval_frame(callback: Any) -> Any:
    if sys._getframe(1).f_code.co_name == "_fn":
        if callback is not None:
            _let_go()
        for watch in _INSTALLATION.watchers if callback is not None else ():
            if watch.graphs is not None:
                watch.graphs.ended()
    elif _here.begins:
        _here.begins = False
        if callback is None:  # dynamo was told to compile nothing
            _put_back()
    else:
        ended, _here.regions = _here.regions[-1:], _here.regions[:-1]
        if not any(region.inside for region in ended):
            _put_back()
            for watch in _INSTALLATION.watchers if ended else ():
                if watch.graphs is not None:
                    watch.graphs.left()
    if callback is not None:
        _take_away()
    return _THEIRS["_maybe_set_eval_frame"](callback)


@uncompiled_itself
def _set_eval_frame(callback: Any) -> Any:
    before = _THEIRS["set_eval_frame"](callback)
    caller = sys._getframe(1)
    if before is not None and caller.f_code.co_name == "_fn":
        frame = caller.f_back
        function: Any = caller.f_locals.get("fn")
        cell = None if frame is None else _graph_of(frame, function)
        if frame is not None and cell is not None:
            own = isinstance(getattr(function, "__self__", None), GraphModule)
            for watch in _INSTALLATION.watchers:
                if watch.graphs is not None:
                    watch.graphs.began(frame, own)
            _intercept(cell, function)
        _put_back()
    return before


def _graph_of(frame: FrameType, function: Any) -> CellType | None:
    """Where it stands which graph dynamo's code calls now; None where it calls no graph."""
    for name in frame.f_code.co_names:
        if name.startswith("__compiled_fn"):
            caller: Any = frame.f_globals.get(name)
            if getattr(caller, "_torchdynamo_orig_callable", None) is function:
                place = caller.__code__.co_freevars.index("fn")
                found: CellType = caller.__closure__[place]
                return found
    return None


def _intercept(cell: CellType, graph: Callable[..., Any]) -> None:
    """Have the graph tell what it gives, the next time that it is called: nothing else does."""

    def run(*args: Any) -> Any:
        result = graph(*args)
        if _here.cell is cell:
            for watch in _INSTALLATION.watchers:
                if watch.graphs is not None:
                    watch.graphs.gave(args, result)
        return result

    _let_go()
    cell.cell_contents, _here.cell, _here.graph = run, cell, graph


def _let_go() -> None:
    """From now on the graph is called as before."""
    cell, _here.cell = _here.cell, None
    if cell is not None:
        cell.cell_contents, _here.graph = _here.graph, None


def _convert(self: Any, frame: Any, *args: Any, **more: Any) -> Any:
    if _here.regions and _here.regions[-1].in_python:  # as far as was known
        region = _here.regions[-1]._replace(in_python=False, keeps_hooks=True)
        _here.regions = (*_here.regions[:-1], region)
        _take_away()
    try:
        result = _THEIRS["__call__"](self, frame, *args, **more)
    except Exception as error:
        with suppress(Exception):
            _tell(skipped_now(self, frame.f_code, error))
        _look_again()
        raise
    if result.guarded_code is None:
        _look_again()
    return result


def _tell(skipped: Skipped | None) -> None:
    if skipped is not None:
        for watch in _INSTALLATION.watchers:
            watch.skipped(skipped)


def _answer(question: Callable[[Any], bool], function: Any) -> bool:
    try:
        return question(function)
    except Exception:  # then what is ours goes, as from any region
        return False


def _look_again() -> None:
    """Dynamo skips a function: what is ours is put back if it skips all of the region."""
    region = _here.regions[-1] if _here.regions else None
    if region is None or region.inside or region.in_python:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != region.frame:
        frame = frame.f_back
    if frame is not None and _answer(is_left_to_python, frame.f_locals.get("fn")):
        _here.regions = (*_here.regions[:-1], region._replace(in_python=True))
        _put_back()


def _check(what: Any, is_inlined_call: bool = False, **more: Any) -> Any:
    if isinstance(what, CodeType) and not is_inlined_call:
        file = what.co_filename
        if file == _FINALIZERS or file.startswith(_PACKAGE):
            return True
        in_python = _here.regions and _here.regions[-1].in_python
        if in_python and (file == _CONTEXTS or (file, what.co_name) == _TUPLES):
            return True
    return _THEIRS["check"](what, is_inlined_call, **more)


def _get_and_maybe_log_recompilation_reasons(
    entries: Any, frame: Any, *args: Any, **more: Any
) -> Any:
    reasons = _THEIRS["get_and_maybe_log_recompilation_reasons"](entries, frame, *args, **more)
    if reasons and not more.get("skip_logging"):
        with suppress(Exception):  # one for each code that was compiled before
            traces.recompiled(frame.f_code, str(reasons[0]), len(reasons))
    return reasons


_OURS: dict[str, tuple[str, Callable[..., Any]]] = {
    "_is_skip_guard_eval_unsafe_stance": (_DYNAMO, _is_skip_guard_eval_unsafe_stance),
    "_maybe_set_eval_frame": (_DYNAMO, _maybe_set_eval_frame),
    "set_eval_frame": (_DYNAMO, _set_eval_frame),
    "check": (_RULES, _check),  # is a frame left as it is
    "get_and_maybe_log_recompilation_reasons": (_LAST, _get_and_maybe_log_recompilation_reasons),
    "__call__": (_LAST + ".ConvertFrameAssert", _convert),
}
_THEIRS: dict[str, Callable[..., Any]] = {}  # what those replaced


def _owner(place: str) -> Any:
    """A module, or a class in one."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name) if name[:1].isupper() else import_module(place)


def _begin(*_: object) -> None:
    take_off()
    for watch in _INSTALLATION.watchers[-1:]:
        traces.begin(watch.trace)


def _end(*_: object) -> None:
    traces.end()
    if not _here.regions or _here.regions[-1].keeps_hooks:
        take_on()


def _compilations() -> Any:
    """Who is told that a compilation begins, and that it ends; `torch._dynamo.reset()` forgets."""
    return import_module("torch._dynamo.callback").callback_handler


class _Import(MetaPathFinder):
    """Notices that dynamo is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What loads dynamo, and installs the seam then."""
        if name != _LAST:
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
    if _LAST not in sys.modules:
        if _import not in sys.meta_path:
            sys.meta_path.insert(0, _import)
        return
    for name, (place, ours) in _OURS.items():
        module = _owner(place)
        if (theirs := getattr(module, name)) is not ours:
            _THEIRS[name] = theirs
            setattr(module, name, ours)
    handler = _compilations()
    if _begin not in handler.start_callbacks:
        handler.start_callbacks.append(_begin)
    if _end not in handler.end_callbacks:
        handler.end_callbacks.append(_end)


def _remove() -> None:
    if _import in sys.meta_path:
        sys.meta_path.remove(_import)
    if _LAST not in sys.modules:
        return
    for name, theirs in _THEIRS.items():
        place, ours = _OURS[name]
        module = _owner(place)
        if getattr(module, name) is ours:  # else somebody else has put theirs there
            setattr(module, name, theirs)
    handler = _compilations()
    for told, ours in (handler.start_callbacks, _begin), (handler.end_callbacks, _end):
        if ours in told:
            told.remove(ours)


_INSTALLATION: Installation[RegionWatch] = Installation(_install, _remove)
