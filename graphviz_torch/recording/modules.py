"""Which module call and which line of the user's code made each node.

Read from autograd's sequence numbers: each node has one, counted up in the thread that made it.
What is noted is the number at the start and the end of every module call, and the line of every
call into torch that made nodes. Not known: what a compiled region did inside, and the line of a
node that no Python call is seen to make. Another thread counts for itself: of its nodes nothing is
known, and one whose number this thread reached too may pass for this thread's.
"""

from __future__ import annotations

import inspect
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch

from ..internals.dispatch import sequence_number
from ..internals.dynamo import uncompiled
from ..internals.frames import local_variables
from ..internals.module_hooks import ModuleWatch
from ..internals.pytree import tensors
from .source_lines import Foreign, Place, lines, user_frame

Names = tuple[str, str]  # a module's path, and the scope of a call of it


class _ModuleCall:
    """A module call that is running."""

    __slots__ = ("counts", "frame", "module", "names", "place")

    def __init__(self, module: torch.nn.Module, names: Names, frame: FrameType) -> None:
        self.module = module
        self.names = names  # path and scope
        self.frame = frame  # that calls the forward: a walk that meets it knows the line beyond
        self.place: Place | None = None
        self.counts: dict[str, int] = {}  # calls of each child so far


class Modules:
    """A context that notes module calls and lines in the thread that enters it.

    Args:
        model: its submodules are called as in `named_modules()`. None: the first module called is
            the model. A module outside it goes by the variable that holds it, else by its class.
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
        self._names: list[Names] = []  # ... this module and scope
        self._made: list[tuple[int, int, Place]] = []  # start <= number < end were made there
        self.foreign = Foreign()
        self._forwards: dict[CodeType, bool] = {}  # is it the forward of a custom Function
        self._named: list[tuple[str, torch.Tensor]] = []
        self._named_of: list[torch.Tensor | None] = []  # what they are the names of ...
        self._named_modules = 0  # ... in how many modules
        self._named_own = 0  # how many of them are the model's
        self._inputs: list[weakref.ref[torch.Tensor]] = []  # of the last outermost call
        self._watch = ModuleWatch(self._before, self._after)
        if model is not None:
            self._adopt(model, "")
        self._own = len(self._modules)  # these are the model's; 0 where none was given

    def __enter__(self) -> Modules:
        self._thread = get_ident()
        self.reached = sequence_number()
        self._numbers.append(self.reached)
        self._names.append(("", ""))
        self._watch.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._running.clear()

    def close(self) -> None:
        """Hold nothing of the program any more."""
        self._modules.clear()
        self._named.clear()
        self._named_of.clear()
        self._forwards.clear()

    @property
    def first(self) -> int:
        """Sequence number of the first node that the block could make."""
        return self._numbers[0]

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
        # Another may have been put in the place of any meanwhile.
        modules = [module for module, _ in self._modules.values()]
        now: list[torch.Tensor | None] = [p for m in modules for p in m._parameters.values()]
        known = (self._named_modules, len(self._named_of)) == (len(self._modules), len(now))
        if not known or not all(map(is_, now, self._named_of)):
            self._named_modules, self._named_of = len(self._modules), now
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
    def calls(self) -> int:
        """How many calls of modules have begun or ended so far."""
        return len(self._numbers)

    @property
    def in_forward(self) -> bool:
        """Is a module's forward running in this thread."""
        return bool(self._running)

    @uncompiled
    def made(self, start: int, end: int, frame: FrameType | None) -> None:
        """Note that the nodes from `start` up to `end` were made by a call in `frame`."""
        self.reached = end
        place = self.place(frame)
        if place is not None:
            self._made.append((start, end, place))

    @uncompiled
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
        """The innermost place in the user's own code from `frame` outwards."""
        foreign, running = self.foreign, self._running
        depth = innermost = len(running) - 1
        call = running[depth] if running else None
        found = None
        while frame is not None:
            code = frame.f_code
            if not foreign[code.co_filename]:
                found = (code, frame.f_lasti)
                break
            if call is not None and frame is call.frame:
                if call.place is not None:
                    found = call.place
                    break
                depth -= 1
                call = running[depth] if depth >= 0 else None
            frame = frame.f_back
        if depth < innermost:  # met calls whose line was not known yet
            for call in running[depth + 1 :]:
                call.place = found
        return found

    def found(self, numbers: Sequence[int]) -> dict[str, list[str]]:
        """Columns for the nodes with these sequence numbers: module, scope, source.

        "" where one is not known.
        """
        # Those of one backward lie close together, among those of all that the block has seen.
        last = max(self.reached, self._numbers[-1])
        known = [min(number, last) for number in numbers if number >= self._numbers[0]]
        first = min(known, default=last)
        length = max(known, default=last) + 1 - first
        names: list[Names] = [("", "")] * length
        begin = bisect_right(self._numbers, first) - 1
        stop = bisect_left(self._numbers, first + length)
        ends = [*self._numbers[begin + 1 : stop], first + length]
        for name, start, end in zip(self._names[begin:stop], [first, *ends], ends, strict=False):
            names[start - first : end - first] = [name] * (end - start)
        sources = [""] * length
        line = self.lines()
        begin = bisect_right(self._made, first, key=itemgetter(1))
        stop = bisect_left(self._made, first + length, key=itemgetter(0))
        for start, end, place in self._made[begin:stop]:
            start, end = max(start - first, 0), min(end - first, length)
            sources[start:end] = [line(place)] * (end - start)
        # Before the block nothing is known, and a leaf has the number -1.
        names.append(("", ""))
        sources.append("")
        places = [min(n, last) - first if n >= self._numbers[0] else -1 for n in numbers]
        return {
            "module": [names[i][0] for i in places],
            "scope": [names[i][1] for i in places],
            "source": [sources[i] for i in places],
        }

    def lines(self) -> Callable[[Place | None], str]:
        """Turns a place into "train.py:41", with as many folders as tell files apart."""
        return lines(file for file, foreign in self.foreign.items() if not foreign)

    def _adopt(self, module: torch.nn.Module, prefix: str) -> None:
        # As named_modules(), in half the time; a module that is there twice has its first name.
        stack = [(prefix, module)]
        while stack:
            path, module = stack.pop()
            if id(module) in self._modules:
                continue
            wrapped = self._modules.get(id(_wrapped_by(module)))
            if wrapped is not None:
                path = wrapped[1]
            self._modules[id(module)] = (module, path)
            for name, child in reversed(module._modules.items()):
                if child is not None:
                    # A compiled module goes by the name of what it wraps.
                    below = "" if name == "_orig_mod" else name
                    stack.append((f"{path}.{below}" if path and below else path or below, child))

    def _before(self, module: torch.nn.Module, args: Any, frame: FrameType) -> None:
        if get_ident() != self._thread:
            return
        if self._running and _wrapped_by(self._running[-1].module) is module:
            return  # a compiled module calls what it wraps: one call, not two
        known = self._modules.get(id(module))
        if known is None:
            self._adopt(module, _variable(module, frame) if self._modules else "")
            known = self._modules[id(module)]
        path = known[1]
        counts, scope, below = self._counts, "", path
        if not self._running:
            variables = local_variables(frame)
            given = tensors(variables.get("args", args), variables.get("kwargs"))
            self._inputs = [weakref.ref(tensor) for tensor in given]
        for call in reversed(self._running):
            # The scope hangs below the innermost running call whose path leads here.
            above, outer = call.names
            if not above or path.startswith(above + "."):
                counts, scope = call.counts, outer
                below = path[len(above) + 1 :] if above else path
                break
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

    def _after(self, module: torch.nn.Module, output: Any, frame: FrameType) -> None:
        if get_ident() != self._thread:
            return
        number = sequence_number()
        if number != self.reached:  # made unseen, inside this call: the line that called it
            self.made(self.reached, number, frame)
        running = self._running
        depth = len(running) - 1
        while depth >= 0 and running[depth].module is not module:
            depth -= 1  # its end was not seen: an interrupt that somebody caught
        if depth < 0:
            return  # its begin was not seen: another's hook raised before ours
        del running[depth:]
        self._numbers.append(number)
        self._names.append(running[-1].names if running else ("", ""))
        if not running and output is not None:
            self._finished(output)


def _wrapped_by(module: torch.nn.Module) -> torch.nn.Module | None:
    """What torch.compile made this module of, if it did."""
    inside = module._modules  # of a scripted module it is no dict, and has no `get`
    if "_orig_mod" not in inside:
        return None
    return inside["_orig_mod"]


def _variable(module: torch.nn.Module, caller: FrameType) -> str:
    """What the user's code that calls a module calls it; the name of its class if nothing."""
    frame = user_frame(caller)
    variables = {} if frame is None else local_variables(frame)
    found = (name for name, value in variables.items() if value is module)
    return next(found, type(module).__name__)


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
