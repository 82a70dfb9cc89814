"""Outermost forwards that no backward runs through, and those that repeat an earlier one.

A forward is known by the lines that lead to it, by the numbers of its nodes, and by a weak
reference to the dictionary in which the node of its result keeps its hooks: that dies with the
graph. It is judged when its graph is freed: a later step may run backward through one that is kept.

    forward ─► pending ─► a backward has nodes of it ─► used
                  └────► its graph is freed ─► discarded, if no backward had
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...graph import Graph
from ...graph.events import DiscardedForward, RepeatedForward
from ...internals.frames import CodePosition, frame_variables, user_frame, user_frames
from ...internals.functions import TensorBase
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.hooks.nodes import hook_dictionaries
from ...internals.tensors.memory import has_memory, storage_id, storage_ref
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..listener import BackwardBegan, Listener, Resumed
from ..program import Program

_Lines = tuple[CodePosition, ...]  # that lead to a forward, outermost first
_MAX_PENDING, _MAX_LINES = 64, 256
_ENOUGH = 2  # forwards of a line
_PLAIN = (bool, int, float, str, type(None))  # arguments that are compared by their values


class _Given(NamedTuple):
    """What identifies the arguments of a forward."""

    key: tuple[Any, ...] = ()  # (): they cannot be identified
    storages: tuple[Any, ...] = ()  # weak references: no other storage has the id of these


@dataclass(slots=True, eq=False)
class _Forward:
    """A forward whose result needs a gradient."""

    module: str
    lines: _Lines
    start: int  # its nodes have the numbers start <= number < end
    end: int
    graph: weakref.ref[Any]
    training: bool
    given: _Given
    cuts: int  # of the program so far, when it ended
    was_read: bool = False


@dataclass(slots=True)
class _Line:
    """The forwards of one line."""

    module: str = ""
    used: bool = False
    counts: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # by was_read, training


class Forwards(Listener):
    """Notes forwards that were for nothing, or were made before."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._began = -1  # number of the next node when the running one began
        self._given = _Given()
        self._pending: deque[_Forward] = deque(maxlen=_MAX_PENDING)
        self._last: _Forward | None = None  # what is computed from it may be read yet
        self._lines: dict[_Lines, _Line] = {}

    def on_module_start(self, event: ModuleBegan) -> None:
        if self.program.stack.is_outermost:
            self._look_at_last()
            self._began = sequence_number()
            self._given = _Given()
            if torch.is_grad_enabled():
                args, kwargs = frame_variables(event.frame, "args", "kwargs")
                args = event.args if args is None else args
                self._given = _given(args, kwargs)
                if any(each.grad_fn is not None for each in tensors(args, kwargs)):
                    self._began = -1  # a head on what another module computes

    def on_module_end(self, event: ModuleEnded) -> None:
        if not self.program.stack.is_outermost or self._began < 0:
            return
        start, self._began = self._began, -1
        fns = [t.grad_fn for t in tensors(event.output) if t.grad_fn is not None]
        if not fns or not torch.is_grad_enabled():
            return
        frames = user_frames(user_frame(event.frame))
        lines = tuple([(frame.f_code, frame.f_lasti) for frame in reversed(frames)])
        module = self.program.module
        graph = weakref.ref(hook_dictionaries(fns[:1])[0])
        training = bool(getattr(event.module, "training", True))
        row = module, lines, start, sequence_number(), graph, training, self._given
        self._last = _Forward(*row, self.program.cuts)
        for other in self._pending if self._given.key else ():
            if other.module == module and other.given.key == self._given.key:
                self._note_repeated(module, other.lines, lines)
                break
        self._pending.append(self._last)

    def _note_repeated(self, module: str, first: _Lines, second: _Lines) -> None:
        at, line = _parting(first, second), self.program.line()
        self.events.note(RepeatedForward(module=module, first=line(first[at])), second[at])

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._look_at_last()
        numbers = sorted(event.live.numbers)
        for forward in [*self._pending]:
            at = bisect_left(numbers, forward.start)
            if at < len(numbers) and numbers[at] < forward.end:
                self._line(forward).used = True
                self._pending.remove(forward)

    def on_resume(self, event: Resumed) -> None:
        self._pending.clear()
        self._last = None

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._look_at_last()
        for forward in [*self._pending]:
            if forward.graph() is None:
                self._pending.remove(forward)
                if forward is self._last:
                    self._last = None
                self._line(forward).counts[forward.was_read, forward.training] += 1
        used = [lines for lines, known in self._lines.items() if known.used]
        for lines, known in self._lines.items():
            for (was_read, training), count in known.counts.items():
                if used and not known.used and count >= _ENOUGH:
                    event = DiscardedForward(
                        module=known.module, was_read=was_read, in_training=training
                    )
                    self.events.note(event, _own_line(lines, used), count=count)

    def close(self) -> None:
        self._pending.clear()
        self._last = None

    def _line(self, forward: _Forward) -> _Line:
        known = self._lines.get(forward.lines)
        if known is None:
            while len(self._lines) >= _MAX_LINES:
                del self._lines[next(iter(self._lines))]
            known = self._lines[forward.lines] = _Line(forward.module)
        return known

    def _look_at_last(self) -> None:
        """Note whether anything was read since the last forward: it may be of its result."""
        if self._last is not None:
            self._last.was_read = self._last.was_read or self.program.cuts > self._last.cuts


def _parting(first: _Lines, second: _Lines) -> int:
    """Return the position of the outermost lines that differ; of the last, where none do."""
    pairs = zip(first, second, strict=False)
    differ = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    return min(differ, len(first) - 1, len(second) - 1)


def _own_line(lines: _Lines, used: Sequence[_Lines]) -> CodePosition:
    """Return the line that leads to a forward, and to none that a backward runs through.

    It is the line of the forward, unless used ones share it: then the outermost that they do not.
    """
    if all(lines[-1] != other[-1] for other in used):
        return lines[-1]
    return lines[max(_parting(lines, other) for other in used)]


def _given(args: Any, kwargs: Any) -> _Given:
    """Return what identifies the arguments of a forward: tensors by their memory and version."""
    key: list[Any] = []
    storages = []
    for value in (*args, *(kwargs or {}).items()):
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, Tensor):
                key.append(part if isinstance(part, _PLAIN) else id(part))
                continue
            if not has_memory(part):
                return _Given()
            storages.append(storage_ref(part))
            place = storage_id(part), TensorBase.storage_offset(part), part._version
            key += [*place, tuple(part.shape), TensorBase.stride(part)]
    return _Given(tuple(key), tuple(storages)) if storages else _Given()
