"""Detect that graphs of earlier steps stay alive, as with a list of losses or a running sum.

At every fourth step the graph is marked: a weak reference to the hook dictionary of its root is
kept. The dictionary is freed together with the root, so the mark shows whether the graph is alive.
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

_MARK_EVERY = 4  # steps between two marks
_CHECK_EVERY = 8  # steps between two checks of the marks
_MIN_ALIVE = 6  # graphs are reported if the marked graphs of this number of steps are alive
_MAX_NODES = 64  # maximum number of nodes to search upstream of a variable
_MAX_FRAMES = 4  # maximum number of frames to search for the variable that keeps the graphs

_Mark = weakref.ref[Any]


class RetainedGraphMarks:
    """Weak references to graphs of earlier steps, which show whether many graphs stay alive."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, _Mark]] = deque()
        self._reported = False

    def mark(self, step: int, outputs: Sequence[Any]) -> None:
        """Put a weak mark on the graph of a backward, at every `_MARK_EVERY`-th step.

        Args:
            step: number of the step.
            outputs: roots of the backward.
        """
        if self._reported or step % _MARK_EVERY:
            return
        for output in outputs:
            fn = output.grad_fn if isinstance(output, Tensor) else None
            if fn is not None:
                self._marks.append((step, weakref.ref(hook_dictionaries([fn])[0])))
                return

    def due(self, step: int) -> bool:
        """Return True if `report` has to check in this step whether marked graphs are alive."""
        return not (self._reported or step % _CHECK_EVERY)

    def report(self, step: int, frame: FrameType) -> Iterator[WatchReport]:
        """Yield a report if graphs of many earlier steps are still in memory."""
        self._marks = deque((when, mark) for when, mark in self._marks if mark() is not None)
        steps = {when for when, _ in self._marks if when < step}
        if len(steps) < _MIN_ALIVE:
            return
        self._reported = True
        name, place = self._holder(frame)
        self._marks.clear()
        what = f"{name}{place} keeps" if name else "Something keeps"
        text = f"{what} the graph of each step alive, from step {min(steps)} on."
        yield WatchReport(step, "retained-graph", text)

    def _holder(self, frame: FrameType) -> tuple[str, str]:
        """Return the variable that keeps the graphs alive, and its function, as in " in train()".

        Both are "" if unknown.
        """
        marked = {id(mark()) for _, mark in self._marks}
        for outer in user_frames(user_frame(frame))[:_MAX_FRAMES]:
            for name, value in local_variables(outer).items():
                held = value[-_CHECK_EVERY:] if isinstance(value, list) else [value]
                fns = [t.grad_fn for t in held if isinstance(t, Tensor) and t.grad_fn is not None]
                # From a running sum, the search goes on to the sums of earlier steps.
                for _ in range(0 if isinstance(value, list) else _CHECK_EVERY):
                    fns = [*dict.fromkeys(f for fn in fns for f in (fn, *sources_of(fn)))]
                    del fns[_MAX_NODES:]
                if any(id(each) in marked for each in hook_dictionaries(fns)):
                    return name, f" in {outer.f_code.co_name}()" if outer.f_back else ""
        return "", ""
