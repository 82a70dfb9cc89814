"""Detect graphs of earlier steps that stay alive, as in a list of losses or a sum with history.

In every fourth step the root of backward is marked, as in steps/history.py; the mark dies with the
node.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from ...internals.frames import local_variables, user_frame, user_frames
from ...internals.hooks.nodes import hook_dictionaries
from ...tracing.nodes import sources_of
from .checks import WatchReport

_MARKED = 4  # steps from one that is marked to the next
_EVERY = 8  # steps from one look to the next
_MANY = 6  # of the marked steps whose graphs are alive
_NODES = 64  # behind a variable that are looked at
_FRAMES = 4  # in which the name of what holds them is looked for

_Mark = weakref.ref[Any]


class LivingGraphs:
    """The live graphs of earlier steps."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, _Mark]] = deque()
        self._told = False

    def backward_began(self, step: int, outputs: Sequence[Any]) -> None:
        """Mark the graph of a backward."""
        if self._told or step % _MARKED:
            return
        for output in outputs:
            fn = output.grad_fn if isinstance(output, Tensor) else None
            if fn is not None:
                self._marks.append((step, weakref.ref(hook_dictionaries([fn])[0])))
                return

    def due(self, step: int) -> bool:
        """Return True if it is time to check."""
        return not (self._told or step % _EVERY)

    def stepping(self, step: int, frame: FrameType) -> Iterator[WatchReport]:
        """Report graphs that are still alive."""
        self._marks = deque((when, mark) for when, mark in self._marks if mark() is not None)
        steps = {when for when, _ in self._marks if when < step}
        if len(steps) < _MANY:
            return
        self._told = True
        name, place = self._holder(frame)
        self._marks.clear()
        what = f"{name}{place} holds" if name else "Something holds"
        text = f"{what} the graph of each step, from step {min(steps)} on."
        yield WatchReport(step, "retained-graph", text)

    def _holder(self, frame: FrameType) -> tuple[str, str]:
        """Return the name of the program's variable that keeps them, and its line."""
        marked = {id(mark()) for _, mark in self._marks}
        for outer in user_frames(user_frame(frame))[:_FRAMES]:
            for name, value in local_variables(outer).items():
                held = value[-_EVERY:] if isinstance(value, list) else [value]
                fns = [t.grad_fn for t in held if isinstance(t, Tensor) and t.grad_fn is not None]
                for _ in range(0 if isinstance(value, list) else _EVERY):  # a sum, and its past
                    fns = [*dict.fromkeys(f for fn in fns for f in (fn, *sources_of(fn)))]
                    del fns[_NODES:]
                if any(id(each) in marked for each in hook_dictionaries(fns)):
                    return name, f" in {outer.f_code.co_name}()" if outer.f_back else ""
        return "", ""
