"""Which module call and which line of the user's code made each node.

Read from autograd's sequence numbers: each node has one, counted up in the thread that made it.
What is noted is the number at the start and the end of every module call, and the line of every
call into torch that made nodes; a node is then found by bisection. Not known: what another thread
made, what a compiled region did inside, and the line of a node that no Python call is seen to make.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .dispatch import sequence_number
from .following import tensors
from .names import local_variables

Place = tuple[str, int]  # file and line

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

    __slots__ = ("counts", "frame", "module", "names", "place")

    def __init__(self, module: torch.nn.Module, names: tuple[str, str], frame: FrameType) -> None:
        self.module = module
        self.names = names  # path and scope
        self.frame = frame  # that calls the forward: a walk that meets it knows the line beyond
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
        self.reached = 0  # the nodes before this number have been looked at
        self._called: set[str] = set()  # paths of the modules whose forward ran
        self._finished = finished
        self._modules: dict[int, tuple[torch.nn.Module, str]] = {}  # by id()
        self._running: list[_ModuleCall] = []
        self._counts: dict[str, int] = {}  # outermost calls since the last backward
        self._numbers: list[int] = []  # from this number on, nodes were made in ...
        self._names: list[tuple[str, str]] = []  # ... this module and scope
        self._starts: list[int] = []  # nodes with starts[i] <= number < ends[i] ...
        self._ends: list[int] = []
        self._places: list[Place] = []  # ... were made here
        self._foreign: dict[str, bool] = {}  # by file: is it not the user's own code
        self._forwards: dict[CodeType, bool] = {}  # is it the forward of a custom Function
        self._named: list[tuple[str, torch.Tensor]] = []
        self._named_of = 0  # how many modules they are of
        self._named_own = 0  # how many of them are the model's
        self._inputs: list[weakref.ref[torch.Tensor]] = []  # of the last outermost call
        self._handles: list[Any] = []
        if model is not None:
            self._adopt(model, "")
        self._own = len(self._modules)  # these are the model's; 0 where none was given

    def __enter__(self) -> Modules:
        self._thread = get_ident()
        self.reached = sequence_number()
        self._numbers.append(self.reached)
        self._names.append(("", ""))
        self._ends.append(self.reached)
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
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
        self._forwards.clear()

    def was_called(self, parameter: str) -> bool:
        """Did the forward of the module run that owns the parameter of this name."""
        return parameter.rpartition(".")[0] in self._called

    def buffers(self) -> list[torch.Tensor]:
        """Buffers of the model and of every other module called."""
        found = (b for module, _ in self._modules.values() for b in module._buffers.values())
        return [buffer for buffer in found if buffer is not None]

    def inputs(self) -> list[torch.Tensor]:
        """Arguments of the last outermost call that are still there."""
        found = (ref() for ref in self._inputs)
        return [tensor for tensor in found if tensor is not None]

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Names and parameters of the model and of every other module called."""
        if self._named_of != len(self._modules):
            self._named_of = len(self._modules)
            named: dict[int, tuple[str, torch.Tensor]] = {}
            for i, (module, path) in enumerate(self._modules.values()):
                if i == self._own:
                    self._named_own = len(named)
                for name, parameter in module._parameters.items():
                    if parameter is not None:  # the first name of a shared one
                        named.setdefault(
                            id(parameter), (f"{path}.{name}" if path else name, parameter)
                        )
            self._named = list(named.values())
            if self._own == len(self._modules):
                self._named_own = len(named)
        return self._named

    def listed(self) -> list[tuple[str, torch.Tensor]]:
        """Those of the model; where none was given, those of every module called."""
        named = self.parameters()
        return named[: self._named_own] if self._own else named

    def new_step(self) -> None:
        """Count outermost calls from one again."""
        self._counts.clear()

    @property
    def module(self) -> str:
        """Path of the module whose forward is running; "" where none is, or the root's is."""
        return self._running[-1].names[0] if self._running else ""

    @property
    def in_forward(self) -> bool:
        """Is a module's forward running in this thread."""
        return bool(self._running)

    def made(self, start: int, end: int, frame: FrameType | None) -> None:
        """Note that the nodes from `start` up to `end` were made by a call in `frame`."""
        place = self.place(frame)
        self.reached = end
        if place is not None:
            if start == self._ends[-1] and self._places and self._places[-1] is place:
                self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)
                self._places.append(place)

    def skipped(self, start: int, frame: FrameType | None) -> None:
        """Note that before a call in `frame` nodes were made, up to `start`, by no call seen.

        If `frame` is inside a custom Function's forward, they are that Function's.
        """
        outer = frame
        while outer is not None and not self._is_of_function(outer.f_code):
            outer = outer.f_back
        if outer is not None:
            self.made(self.reached, start, outer.f_back)
        self.reached = start

    def _is_of_function(self, code: CodeType) -> bool:
        # By the forward itself: apply, which calls it, has no frame from torch 2.14 on.
        if code.co_name != "forward":
            return False
        known = self._forwards.get(code)
        if known is None:
            known = self._forwards[code] = code in _forwards()
        return known

    def place(self, frame: FrameType | None) -> Place | None:
        """The innermost line of the user's own code from `frame` outwards."""
        foreign = self._foreign
        running = self._running
        depth = len(running) - 1
        call = running[depth] if running else None
        found = None
        while frame is not None:
            file = frame.f_code.co_filename
            here = foreign.get(file)
            if here is None:
                here = foreign[file] = file.startswith(_FOREIGN)
            if not here:
                found = (file, frame.f_lineno)
                break
            if call is not None and frame is call.frame:
                if call.place is not None:
                    found = call.place
                    break
                depth -= 1
                call = running[depth] if depth >= 0 else None
            frame = frame.f_back
        for call in running[depth + 1 :]:
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
        lines = list(map(names, self._places))
        rows = []
        for number in numbers:
            i = bisect_right(self._numbers, number) - 1
            module, scope = self._names[i] if i >= 0 else ("", "")
            i = bisect_right(self._starts, number) - 1
            rows.append((module, scope, lines[i] if i >= 0 and number < self._ends[i + 1] else ""))
        return rows

    def names(self) -> Callable[[Place | None], str]:
        """Turns a place into "train.py:41", with as many folders as tell files apart."""
        files = _shortest({file for file, foreign in self._foreign.items() if not foreign})
        known: dict[Place | None, str] = {None: ""}

        def name(place: Place | None) -> str:
            found = known.get(place)
            if found is None and place is not None:
                found = known[place] = f"{files[place[0]]}:{place[1]}"
            return found or ""

        return name

    def _adopt(self, module: torch.nn.Module, prefix: str) -> None:
        # As named_modules(), in half the time; a module that is there twice has its first name.
        stack = [(prefix, module)]
        while stack:
            path, module = stack.pop()
            if id(module) in self._modules:
                continue
            wrapped = self._modules.get(id(module._modules.get("_orig_mod")))
            if wrapped is not None:
                path = wrapped[1]
            self._modules[id(module)] = (module, path)
            for name, child in reversed(module._modules.items()):
                if child is not None:
                    # A compiled module goes by the name of what it wraps.
                    below = "" if name == "_orig_mod" else name
                    stack.append((f"{path}.{below}" if path and below else path or below, child))

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if is_compiling() or get_ident() != self._thread:
            return
        known = self._modules.get(id(module))
        if known is None:
            self._adopt(module, type(module).__name__ if self._modules else "")
            known = self._modules[id(module)]
        path = known[1]
        frame = sys._getframe(1)
        parent = self._parent(frame)
        if parent is None:
            counts, scope, below = self._counts, "", path
            variables = local_variables(frame)
            given = tensors(variables.get("args", args), variables.get("kwargs"))
            self._inputs = [weakref.ref(tensor) for tensor in given]
        else:
            # The scope hangs below the innermost running call whose path leads here.
            for call in reversed(self._running):
                above, scope = call.names
                if not above or path.startswith(above + "."):
                    counts, below = call.counts, path[len(above) + 1 :] if above else path
                    break
            else:
                counts, scope, below = self._counts, "", path
        count = counts[below] = counts.get(below, 0) + 1
        if count > 1:
            below = f"{below}#{count}"
        names = (path, f"{scope}.{below}" if scope and below else scope or below)
        number = sequence_number()
        if number != self.reached:
            self.skipped(number, frame)
        self._running.append(_ModuleCall(module, names, frame))
        self._numbers.append(number)
        self._names.append(names)
        self._called.add(path)

    def _parent(self, frame: FrameType) -> _ModuleCall | None:
        """The call that is running, without those above it that an exception has ended."""
        while self._running:
            outer = frame.f_back
            running = self._running[-1].frame
            while outer is not None:
                if outer is running:
                    return self._running[-1]
                outer = outer.f_back
            self._running.pop()
        return None

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if is_compiling() or get_ident() != self._thread:
            return
        number = sequence_number()
        if number != self.reached:  # made unseen, inside this call: the line that called it
            self.made(self.reached, number, sys._getframe(1))
        running = self._running
        while running and running.pop().module is not module:
            pass  # its end was not seen: an exception that somebody caught
        self._numbers.append(number)
        self._names.append(running[-1].names if running else ("", ""))
        if not running and output is not None:
            self._finished(output)


def _forwards() -> set[CodeType]:
    """The code of the forward of every custom Function."""
    found, stack = set(), [torch.autograd.Function]
    while stack:
        kind = stack.pop()
        stack.extend(kind.__subclasses__())
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None:
            found.add(code)
    return found


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
