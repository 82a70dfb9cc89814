"""Which module call and which line of the user's code made each node.

Read from autograd's sequence numbers: each node has one, counted up in the thread that made it.
What is noted is the number at the start and the end of every module call, and the line of every
call into torch that made nodes; a node is then found by bisection. Not known: what another thread
made, what a compiled region did inside, and the line of a node that no Python call is seen to make.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .dispatch import sequence_number

Place = tuple[str, int]  # file and line

_CALL = torch.nn.Module._call_impl.__code__
_APPLY = torch.autograd.Function.apply.__code__
_FOREIGN = (
    str(Path(__file__).parent) + os.sep,
    str(Path(torch.__file__).parent) + os.sep,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
)


class _ModuleCall:
    """A module call that is running."""

    __slots__ = ("counts", "frame", "module", "path", "place", "scope")

    def __init__(self, module: torch.nn.Module, path: str, scope: str, frame: FrameType) -> None:
        self.module = module
        self.path = path
        self.scope = scope
        self.frame = frame  # of Module._call_impl: a walk that meets it knows the line beyond
        self.place: Place | None = None
        self.counts: dict[str, int] = {}  # calls of each child so far


class Modules:
    """A context that notes module calls and lines in the thread that enters it.

    Args:
        model: its submodules are called as in `named_modules()`. None: the first module called is
            the model. A module outside it goes by the name of its class.
        finished: called with the outputs of every outermost module call.
    """

    def __init__(self, model: torch.nn.Module | None, finished: Callable[[Any], None]) -> None:
        self.called: set[int] = set()  # id() of the modules whose forward ran
        self._model = model
        self._finished = finished
        self._modules: dict[int, tuple[torch.nn.Module, str]] = {}  # by id()
        self._running: list[_ModuleCall] = []
        self._counts: dict[str, int] = {}  # outermost calls since the last backward
        self._numbers: list[int] = []  # from this number on, nodes were made in ...
        self._scopes: list[tuple[str, str]] = []  # ... this module and scope
        self._starts: list[int] = []  # nodes with starts[i] <= number < ends[i] ...
        self._ends: list[int] = []
        self._places: list[Place] = []  # ... were made here
        self._foreign: dict[CodeType, bool] = {}
        self._named: list[tuple[str, torch.Tensor]] = []
        self._named_of = 0  # how many modules they are of
        self._handles: list[Any] = []
        if model is not None:
            self._adopt(model, "")

    def __enter__(self) -> Modules:
        self._thread = threading.get_ident()
        self._numbers.append(sequence_number())
        self._scopes.append(("", ""))
        self._ends.append(sequence_number())
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._running.clear()

    def close(self) -> None:
        """Hold nothing of the program any more."""
        self._modules.clear()
        self._named.clear()

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Names and parameters of the model and of every other module called."""
        if self._named_of != len(self._modules):
            self._named_of = len(self._modules)
            self._named = [
                (f"{path}.{name}" if path else name, parameter)
                for module, path in self._modules.values()
                for name, parameter in module._parameters.items()
                if parameter is not None
            ]
        return self._named

    def new_step(self) -> None:
        """Count outermost calls from one again."""
        self._counts.clear()

    @property
    def module(self) -> str:
        """Path of the module whose forward is running; "" where none is, or the root's is."""
        return self._running[-1].path if self._running else ""

    @property
    def in_forward(self) -> bool:
        """Is a module's forward running in this thread."""
        return bool(self._running)

    def made(self, start: int, end: int, frame: FrameType | None) -> None:
        """Note that the nodes from `start` up to `end` were made by a call in `frame`."""
        last = self._ends[-1]
        if start > last:  # by a call that was not seen: a custom Function's forward is inside it
            beyond = self._beyond_apply(frame)
            if beyond is not None:
                self._note(last, start, beyond)
        place = self.place(frame)
        if place is not None:
            self._note(start, end, place)

    def place(self, frame: FrameType | None) -> Place | None:
        """The innermost line of the user's own code from `frame` outwards."""
        foreign = self._foreign
        crossed = []
        depth = len(self._running)
        while frame is not None:
            code = frame.f_code
            if code is _CALL and depth and self._running[depth - 1].frame is frame:
                depth -= 1
                call = self._running[depth]
                if call.place is not None:
                    found = call.place
                    break
                crossed.append(call)
            elif code not in foreign:
                foreign[code] = code.co_filename.startswith(_FOREIGN)
            if not foreign.get(code, True):
                found = (code.co_filename, frame.f_lineno)
                break
            frame = frame.f_back
        else:
            return None
        for call in crossed:
            call.place = found
        return found

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's own code from `frame` outwards."""
        while frame is not None and frame.f_code.co_filename.startswith(_FOREIGN):
            frame = frame.f_back
        return frame

    def found(self, numbers: Iterable[int]) -> list[tuple[str, str, str]]:
        """Module, scope and line of the node with each sequence number; "" where not known."""
        names = self.names()
        rows = []
        for number in numbers:
            i = bisect_right(self._numbers, number) - 1
            module, scope = self._scopes[i] if i >= 0 else ("", "")
            i = bisect_right(self._starts, number) - 1
            known = i >= 0 and number < self._ends[i + 1]
            rows.append((module, scope, names(self._places[i]) if known else ""))
        return rows

    def names(self) -> Callable[[Place | None], str]:
        """Turns a place into "train.py:41", with as many folders as tell files apart."""
        files = _shortest({file for file, _ in self._places})
        return lambda place: (
            f"{files.get(place[0]) or os.path.basename(place[0])}:{place[1]}" if place else ""
        )

    def _note(self, start: int, end: int, place: Place) -> None:
        self._starts.append(start)
        self._ends.append(end)
        self._places.append(place)

    def _beyond_apply(self, frame: FrameType | None) -> Place | None:
        found = None
        while frame is not None:
            if frame.f_code is _APPLY:
                found = frame.f_back
            frame = frame.f_back
        return self.place(found)

    def _adopt(self, module: torch.nn.Module, prefix: str) -> None:
        for name, child in module.named_modules(prefix=prefix):
            path = name.replace("_orig_mod.", "").removesuffix("_orig_mod").rstrip(".")
            self._modules.setdefault(id(child), (child, path))

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        if id(module) not in self._modules:
            self._adopt(module, type(module).__name__ if self._modules else "")
        path = self._modules[id(module)][1]
        # The scope hangs below the innermost running call whose path leads here.
        counts, scope, below = self._counts, "", path
        for call in reversed(self._running):
            if call.path == "" or path.startswith(call.path + "."):
                counts, scope = call.counts, call.scope
                below = path[len(call.path) + 1 :] if call.path else path
                break
        count = counts[below] = counts.get(below, 0) + 1
        segment = f"{below}#{count}" if count > 1 else below
        scope = f"{scope}.{segment}" if scope and segment else scope or segment
        self._running.append(_ModuleCall(module, path, scope, sys._getframe(1)))
        self._numbers.append(sequence_number())
        self._scopes.append((path, scope))
        self.called.add(id(module))

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        number = sequence_number()
        if number > self._ends[-1]:  # made unseen, inside this call: the line that called it
            place = self.place(sys._getframe(1))
            if place is not None:
                self._note(self._ends[-1], number, place)
        while self._running and self._running[-1].module is not module:
            self._running.pop()  # its end was not seen: a KeyboardInterrupt that somebody caught
        if self._running:
            self._running.pop()
        last = self._running[-1] if self._running else None
        self._numbers.append(number)
        self._scopes.append((last.path, last.scope) if last else ("", ""))
        if last is None and output is not None:
            self._finished(output)


def _shortest(files: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    parts = {file: Path(file).parts for file in files}
    for file in files:
        length = 1
        rivals = [other for other in files if other != file]
        while length < len(parts[file]) and any(
            parts[other][-length:] == parts[file][-length:] for other in rivals
        ):
            length += 1
        names[file] = "/".join(parts[file][-length:])
    return names
