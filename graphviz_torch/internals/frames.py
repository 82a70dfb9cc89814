"""Inspect the stack of the user's program: its frames, its variables and the lines of its warnings.

Code is the user's own unless its file is in this package, in torch, in the standard library or in
site-packages. Code in site-packages is called a library.

The set of programs that are recorded belongs to a context (`contextvars`): each thread and each
asyncio task has a set of its own, and a task inherits the set of the task that created it.

If one of our modes or tensor subclasses handles a call, PyTorch's warnings about this call name our
file. Such a warning is therefore issued a second time, with the user's line that it would have
named without us. Filters by module and by line then apply, and the warning is shown once per line.
If the program's filters show a warning in one module only, it remains hidden in that module too.

Uses private API: `warnings._showwarnmsg`, which Python calls for each warning that passed the
filters (3.10 to 3.14), and `handle_torch_function`, through which PyTorch's functions call a mode
(2.13). If other code replaces `_showwarnmsg` after us, its replacement is kept.
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

import torch
from torch import overrides
from torch.nn.parallel.replicate import replicate

from .hooks.watch import Replacement, Watch

CodePosition = tuple[CodeType, int]  # a code object, and the offset of an instruction in it

OWN, LIBRARY, OTHER = range(3)
TORCH = str(Path(torch.__file__).parent) + os.sep

_VMAP = TORCH + os.path.join("_functorch", "vmap.py")
_MAX_FRAMES = 20  # maximum number of frames that `user_frames` returns
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
_LIBRARIES = tuple({os.path.join(path, "") for path in _INSTALLED})
_OTHER_PATHS = (
    _PACKAGE,
    TORCH,
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
)
# Modules of PyTorch that copy tensors or read values without being asked to by the program.
_OF_TORCH = (
    "torch.amp",
    "torch.distributed",
    "torch.distributions",
    "torch.nn.modules.batchnorm",
    "torch.nn.parallel.distributed",
    "torch.optim",
)
_COMMAND = "graphviz-torch"  # file that pip installs as this package's command
_STAGES = os.path.join("torch", "distributed", "pipelining", "stage.py")
_GRAPHS = os.path.join("torch", "cuda", "graphs.py")
_APPLY = torch.nn.Module._apply.__code__
_REPLICATE = replicate.__code__
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")


@cache
def code_owner(file: str) -> int:
    """Classify the code in a file as `OWN` (the user's), `LIBRARY` or `OTHER`."""
    if file.startswith(_OTHER_PATHS) or os.path.basename(file) == _COMMAND:
        return OTHER
    if file.startswith(_LIBRARIES):  # site-packages may be below the standard library
        return LIBRARY
    return OTHER if file.startswith(_STANDARD) else OWN


def notebook_cell(file: str) -> str:
    """Return the notebook's label of the cell with this file name ("In[3]"), or "" for a file."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        called = shell.compile.format_code_name(file)
    except AttributeError:  # no notebook, or a notebook whose cells are files
        return ""
    return called[1] if called else ""


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own code, from `frame` outwards, or None."""
    while frame is not None and code_owner(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def library_of(frame: FrameType | None) -> str:
    """Return the library on the stack between `frame` and the user's code, as "transformers".

    A few modules of PyTorch count as libraries, such as "torch.amp.grad_scaler". Returns "" if no
    library runs, or if there is no user code on the stack.
    """
    found = ""
    while frame is not None and (whose := code_owner(frame.f_code.co_filename)):
        name = str(frame.f_globals.get("__name__", ""))
        if whose == LIBRARY and not found:
            package = str(frame.f_globals.get("__package__") or "")
            found = (package if name == "__main__" else name).partition(".")[0]
        elif not found and any(name == p or name.startswith(f"{p}.") for p in _OF_TORCH):
            found = name
        frame = frame.f_back
    return "" if frame is None else found


def is_shape_inference(frame: FrameType | None) -> bool:
    """Return True if PyTorch is running part of the program in advance, on uninitialized memory.

    A pipeline does so to infer the shapes of a stage. `torch.cuda.make_graphed_callables` does so
    to warm up before it captures a CUDA graph.

    Uses private function names (`_shape_inference`, 2.8; `_metadata_inference`, 2.13).
    """
    while frame is not None:
        name = frame.f_code.co_name
        if name.endswith("_inference") and frame.f_code.co_filename.endswith(_STAGES):
            return True
        if name == "make_graphed_callables" and frame.f_code.co_filename.endswith(_GRAPHS):
            return True
        frame = frame.f_back
    return False


def is_moving_module(frame: FrameType | None) -> bool:
    """Return True if `Module.to` or a similar method runs in `frame` or in a caller of it."""
    return _is_running(_APPLY, frame)


def is_replicating_module(frame: FrameType | None) -> bool:
    """Return True if `nn.DataParallel` is copying a module in `frame` or in a caller of it."""
    return _is_running(_REPLICATE, frame)


def is_packing(frame: FrameType | None) -> bool:
    """Return True if a pack hook of `saved_tensors_hooks` is running, from `frame` outwards.

    Only pack hooks written in Python are recognized. Uses private API to get the current hooks.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and _is_running(getattr(hooks[0], "__code__", None), frame)


def _is_running(code: CodeType | None, frame: FrameType | None) -> bool:
    """Return True if `code` runs in `frame` or in a caller up to the innermost user frame."""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back if code_owner(frame.f_code.co_filename) else None
    return False


def clipping_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the outermost running PyTorch function that clips gradients, or None."""
    found = None
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        if frame.f_code.co_name.lstrip("_").startswith("clip_"):
            found = frame
        frame = frame.f_back
    return found


def clipping_function(frame: FrameType | None) -> str:
    """Return the name of the function of `clipping_frame`, or "" if there is none."""
    found = clipping_frame(frame)
    # The code object of `clip_grads_with_norm_` is named "_clip_grads_with_norm_".
    return "" if found is None else found.f_code.co_name.lstrip("_")


def caller_of_vmap(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame that called the torch.vmap around `frame`, or None."""
    while frame is not None and frame.f_code.co_filename != _VMAP:
        frame = frame.f_back
    return user_frame(frame)


def user_frames(frame: FrameType | None, last: FrameType | None = None) -> list[FrameType]:
    """Return `frame` and its callers in the user's own code, innermost first, up to `last`."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        found.append(frame)
        frame = None if frame is last else user_frame(frame.f_back)
    return found


def parameter_names(frame: FrameType) -> frozenset[str]:
    """Return the names of a function's parameters."""
    code = frame.f_code
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def caller_frame() -> FrameType | None:
    """Return the frame of the first caller outside this package, torch and the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and code_owner(frame.f_code.co_filename) == OTHER:
        frame = frame.f_back
    return frame


def local_variables(frame: FrameType, without: frozenset[type] = frozenset()) -> dict[str, Any]:
    """Return a frame's variables as name -> value, in the order in which they were bound.

    If the frame runs a function, the globals that the function reads follow. Names that start with
    "_" and names that are not identifiers are left out.

    Args:
        frame: the frame.
        without: types whose values are left out.
    """
    values = _copy_variables(frame)
    found = {
        name: value
        for name, value in values.items()
        if type(value) not in without and name.isidentifier() and name[0] != "_"
    }
    shared = frame.f_globals
    read = [name for name in frame.f_code.co_names if name in shared and name not in values]
    return found | {k: shared[k] for k in read if k[0] != "_" and type(shared[k]) not in without}


def frame_variables(frame: FrameType, *names: str) -> list[Any]:
    """Return the values of named variables of a frame, with None for a missing variable."""
    values = _copy_variables(frame)
    return [values.get(name) for name in names]


def _copy_variables(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables without leaving references to them in the frame.

    Before Python 3.13, `frame.f_locals` of a function is a dict that the frame keeps until the
    function ends, which would keep tensors alive.
    """
    values = frame.f_locals
    copy = dict(values)
    snapshot = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(values, dict)
    # The three references are this variable, the argument of getrefcount, and the frame's own.
    if snapshot and sys.getrefcount(values) <= 3:
        values.clear()
    return copy


def hide_frame(error: BaseException) -> None:
    """Remove the frame that caught `error` from the error's traceback.

    Call this in the `except` block of that frame, before a bare `raise`, which does not add the
    frame again.
    """
    trace = error.__traceback__
    error.__traceback__ = None if trace is None else trace.tb_next


class WarningLines(Watch):
    """A watch that makes warnings name the caller of one of our methods, not the method itself.

    Args:
        methods: `__torch_function__` of a mode, or `__torch_dispatch__` of a mode or a tensor.
    """

    def __init__(self, *methods: Any) -> None:
        self.codes: set[CodeType] = {method.__code__ for method in methods}


def _wrap(theirs: Callable[[Any], None]) -> Callable[[Any], None]:
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
        # Our registry is cleared, so that only the user's registry decides whether the warning was
        # shown before.
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
    """Return the frame that called torch, while a torch function or dispatch mode handles it.

    Args:
        frame: the innermost frame of the mode.
        codes: code objects of the methods by which our modes handle calls.
    """
    while frame is not None and frame.f_code in codes:
        frame = frame.f_back
        if frame is not None and frame.f_code is overrides.handle_torch_function.__code__:
            frame = frame.f_back and frame.f_back.f_back  # skip the called torch function
    return frame


_INSTALLATION = Replacement[WarningLines](lambda: [(warnings, "_showwarnmsg", _wrap)])
WarningLines.installation = _INSTALLATION


_programs: ContextVar[frozenset[object]] = ContextVar("graphviz_torch", default=frozenset())
active_programs = _programs.get  # returns the keys of the programs recorded in this context
_suspended: ContextVar[frozenset[object] | None] = ContextVar("graphviz_torch_aside", default=None)


def enter_program(program: object) -> None:
    """Mark this `contextvars` context as belonging to a recorded program.

    Tasks that are created in the context from now on belong to the program, too.

    Args:
        program: key of the recorded program.
    """
    _programs.set(active_programs() | {program})


def leave_program(program: object) -> None:
    """Undo `enter_program`: this `contextvars` context no longer belongs to `program`."""
    _programs.set(active_programs() - {program})
    if (aside := _suspended.get()) is not None:
        _suspended.set(aside - {program})


def leave_programs() -> None:
    """Undo `enter_program` for all recorded programs of this `contextvars` context."""
    _programs.set(frozenset())


def suspend_programs() -> None:
    """Suspend all recordings in this `contextvars` context until `resume_programs` is called."""
    _suspended.set(active_programs())
    leave_programs()


def resume_programs() -> None:
    """Resume the recordings that `suspend_programs` suspended, except those that have ended."""
    _programs.set(active_programs() | (_suspended.get() or frozenset()))
    _suspended.set(None)
