"""The user's program from inside a call: its frames, its variables, the line that is warned of.

The user's own is every file outside this package, torch, the standard library and what is
installed beside it, which are the libraries.

Where something runs, some programs are watched: a thread, and in asyncio a task, has its own. A
task has those of the task that made it.

A warning of PyTorch's names the user's line, though a mode or a tensor of ours took the call: one
that names the file of a method of ours is given once more, with the line that it would have named
without us. So filters by module and by line take it, and it is shown once for each line. A filter
that hides it everywhere but in some module hides it before.

Private: `warnings._showwarnmsg`, which Python calls with each warning that passed the filters (3.10
to 3.14), and the function of PyTorch's between a function and a mode (2.13). Whoever replaces the
first in turn keeps theirs.
"""

from __future__ import annotations

import inspect
import os
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import overrides

from .hooks.watch import Installation, Watch

Place = tuple[CodeType, int]  # code, and the position of an instruction in it

OWN, LIBRARY, OTHER = range(3)
TORCH = str(Path(torch.__file__).parent) + os.sep

_FRAMES = 20  # of the user's that are looked into
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
_LIBRARIES = tuple({os.path.join(path, "") for path in _INSTALLED})
_OTHER = (
    _PACKAGE,
    TORCH,
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
)
# Parts of PyTorch that copy and read on their own.
_OF_TORCH = (
    "torch.amp",
    "torch.distributed",
    "torch.distributions",
    "torch.nn.modules.batchnorm",
    "torch.nn.parallel.distributed",
    "torch.optim",
)
_STAGES = os.path.join("torch", "distributed", "pipelining", "stage.py")
_GRAPHS = os.path.join("torch", "cuda", "graphs.py")
_APPLY = torch.nn.Module._apply.__code__
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")


@cache
def owner(file: str) -> int:
    """Whose code is in a file: `OWN` if it is the user's, `LIBRARY`, or `OTHER`."""
    if file.startswith(_OTHER):
        return OTHER
    if file.startswith(_LIBRARIES):  # they may lie below the standard library
        return LIBRARY
    return OTHER if file.startswith(_STANDARD) else OWN


def cell(file: str) -> str:
    """What a notebook calls the cell that has this file name: "In[3]"; "" for a file."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        called = shell.compile.format_code_name(file)
    except AttributeError:  # no notebook, or one whose cells are files
        return ""
    return called[1] if called else ""


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code from `frame` outwards."""
    while frame is not None and owner(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def library_of(frame: FrameType | None) -> str:
    """The library whose code runs between `frame` and the user's own: "transformers".

    Of PyTorch itself a few modules count, "torch.amp.grad_scaler". "" where there is none, or
    where no code is the user's own.
    """
    found = ""
    while frame is not None and (whose := owner(frame.f_code.co_filename)):
        name = str(frame.f_globals.get("__name__", ""))
        if whose == LIBRARY and not found:
            package = str(frame.f_globals.get("__package__") or "")
            found = (package if name == "__main__" else name).partition(".")[0]
        elif not found and any(name == p or name.startswith(f"{p}.") for p in _OF_TORCH):
            found = name
        frame = frame.f_back
    return "" if frame is None else found


def runs_ahead(frame: FrameType | None) -> bool:
    """Does PyTorch run a part of the program ahead, on memory that nobody has set?

    A pipeline does so for the shapes of a stage, and `torch.cuda.make_graphed_callables` for the
    graph of CUDA that it captures.

    Private: the names of the functions that do (`_shape_inference`, 2.8; `_metadata_inference`,
    2.13).
    """
    while frame is not None:
        name = frame.f_code.co_name
        if name.endswith("_inference") and frame.f_code.co_filename.endswith(_STAGES):
            return True
        if name == "make_graphed_callables" and frame.f_code.co_filename.endswith(_GRAPHS):
            return True
        frame = frame.f_back
    return False


def moves_a_module(frame: FrameType | None) -> bool:
    """Does `Module.to` or another move or cast a tensor of a module, from `frame` outwards?"""
    return _is_running(_APPLY, frame)


def packs(frame: FrameType | None) -> bool:
    """Does a hook keep for backward what a node saves, from `frame` outwards?

    Known of a hook that is a function in Python. Private: which hooks there are.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and _is_running(getattr(hooks[0], "__code__", None), frame)


def _is_running(code: CodeType | None, frame: FrameType | None) -> bool:
    """Does a function with this code run, from `frame` to the innermost one of the user's own?"""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back if owner(frame.f_code.co_filename) else None
    return False


def clipper(frame: FrameType | None) -> str:
    """ "clip_grad_norm_": the outermost function of PyTorch that clips, from `frame` outwards."""
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        own = frame.f_code.co_name.lstrip("_")  # clip_grads_with_norm_ is another name
        if own.startswith("clip_"):
            name = own
        frame = frame.f_back
    return name


def outwards(frame: FrameType | None, last: FrameType | None = None) -> list[FrameType]:
    """A frame, and the user's own ones that lead to it, the innermost first, up to `last`."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _FRAMES:
        found.append(frame)
        frame = None if frame is last else user_frame(frame.f_back)
    return found


def arguments(frame: FrameType) -> frozenset[str]:
    """What a function calls the arguments that it is given."""
    code = frame.f_code
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def caller() -> FrameType | None:
    """The frame of the first caller outside this package, torch and the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner(frame.f_code.co_filename) == OTHER:
        frame = frame.f_back
    return frame


def local_variables(frame: FrameType, without: frozenset[type] = frozenset()) -> dict[str, Any]:
    """The variables of a frame by name, in the order in which they were bound.

    In a function, the globals that it reads follow. Names that start with "_" are private, and
    those that are not identifiers Python's own: left out.

    Args:
        without: types whose values are left out.
    """
    values = _read(frame)
    found = {
        name: value
        for name, value in values.items()
        if type(value) not in without and name.isidentifier() and name[0] != "_"
    }
    shared = frame.f_globals
    read = [name for name in frame.f_code.co_names if name in shared and name not in values]
    return found | {k: shared[k] for k in read if k[0] != "_" and type(shared[k]) not in without}


def variables(frame: FrameType, *names: str) -> list[Any]:
    """Some variables of a frame; None for one that it does not have."""
    values = _read(frame)
    return [values.get(name) for name in names]


def _read(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables; the frame keeps none of its own that nobody else has.

    Before 3.13 a function's frame keeps the dict that it gave until the function ends, and so
    would keep tensors alive.
    """
    values = frame.f_locals
    copy = dict(values)
    snapshot = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(values, dict)
    if snapshot and sys.getrefcount(values) <= 3:  # this name, getrefcount's argument, the frame
        values.clear()
    return copy


def hide(error: BaseException) -> None:
    """Take the frame that caught an error out of its traceback.

    To be called in that frame's `except`, before a bare `raise`, which puts nothing back.
    """
    trace = error.__traceback__
    error.__traceback__ = None if trace is None else trace.tb_next


_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced
_warnings: Any = warnings


class WarningLines(Watch):
    """While it is open, warnings that name a method of ours name its caller.

    Args:
        methods: `__torch_function__` of a mode, or `__torch_dispatch__` of a mode or a tensor.
    """

    def __init__(self, *methods: Any) -> None:
        self.codes: set[CodeType] = {method.__code__ for method in methods}


def _replace() -> None:
    current = _warnings._showwarnmsg
    if current not in _theirs:
        ours = _around(current)
        _theirs[ours] = current
        _warnings._showwarnmsg = ours


def _restore() -> None:
    current = _warnings._showwarnmsg
    if current in _theirs:
        _warnings._showwarnmsg = _theirs[current]


def _around(theirs: Callable[[Any], None]) -> Callable[[Any], None]:
    def show(message: Any) -> None:
        codes = {code for watcher in _INSTALLATION.watchers for code in watcher.codes}
        mode: FrameType | None = None
        if message.filename in {code.co_filename for code in codes}:
            mode = sys._getframe(1)
            while mode is not None and mode.f_code not in codes:
                mode = mode.f_back
        frame = _caller(mode, codes)
        if mode is None or frame is None:
            theirs(message)
            return
        # Ours is to forget it: the user's own tells whether it was shown.
        mode.f_globals.get("__warningregistry__", {}).clear()
        warnings.warn_explicit(
            message.message,
            message.category,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    return show


def _caller(frame: FrameType | None, codes: set[CodeType]) -> FrameType | None:
    """Who made the call that a mode's frame is of."""
    while frame is not None and frame.f_code in codes:
        frame = frame.f_back
        if frame is not None and frame.f_code is overrides.handle_torch_function.__code__:
            frame = frame.f_back and frame.f_back.f_back  # the function itself lies between
    return frame


_INSTALLATION: Installation[WarningLines] = Installation(_replace, _restore)
WarningLines.installation = _INSTALLATION


_programs: ContextVar[frozenset[object]] = ContextVar("graphviz_torch", default=frozenset())
programs = _programs.get  # keys of those that are watched here
_aside: ContextVar[frozenset[object] | None] = ContextVar("graphviz_torch_aside", default=None)


def enter_program(program: object) -> None:
    """What runs here from now on, and in tasks that are made here, is this program."""
    _programs.set(programs() | {program})


def leave_program(program: object) -> None:
    """It is not any more."""
    _programs.set(programs() - {program})
    if (aside := _aside.get()) is not None:
        _aside.set(aside - {program})


def leave_programs() -> None:
    """Nothing that runs from now on in this context, a copy, is watched."""
    _programs.set(frozenset())


def set_programs_aside() -> None:
    """None of them is watched here until they are brought back."""
    _aside.set(programs())
    leave_programs()


def bring_programs_back() -> None:
    """Those that were set aside and have not ended meanwhile are watched again."""
    _programs.set(programs() | (_aside.get() or frozenset()))
    _aside.set(None)
