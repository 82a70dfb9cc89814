"""Which graphs of earlier steps are still alive when backward runs, and what holds them.

A mark is hung on one node of each graph that runs backward, in the node's own `metadata`: an empty
object that lives as long as the node, which is as long as anybody holds what was computed from it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from .places import Place
from .reading import GradFn
from .tracer import connected

# A graph of the step before may be held by a variable that is about to be assigned again.
STEPS = 2
_KEY = "graphviz_torch.kept"


class _Mark:
    __slots__ = ("__weakref__",)


class _Marked(NamedTuple):
    """A graph that ran backward, as long as it is alive."""

    mark: weakref.ref[_Mark]
    number: int  # sequence number of the node that has the mark
    step: int
    place: Place | None


class SeenKept(NamedTuple):
    """Graphs of earlier steps that are alive at a later backward of the same line."""

    steps: int
    number: int | None  # sequence number of what holds them, if that is known
    label: str = ""  # what the caller calls that
    inside: bool = False  # are they part of what runs backward now


class KeptGraphs:
    """Looks, at every backward, for the graphs of earlier ones."""

    def __init__(self) -> None:
        self._marked: list[_Marked] = []
        self._holder: tuple[int | None, str] | None = None  # looked for once

    def see(
        self,
        fns: Collection[GradFn],
        first: int,
        step: int,
        place: Place | None,
        label: Callable[[Tensor], str],
    ) -> SeenKept | None:
        """Look for kept graphs, and mark this one.

        Args:
            fns: the nodes that are about to run, inputs before users.
            first: sequence number of the first node that was made since the last backward.
            step: how many times an optimizer has stepped.
            place: the line that calls backward.
            label: what the caller calls a tensor.
        """
        self._marked = [m for m in self._marked if m.mark() is not None]
        old = [m for m in self._marked if m.place == place and m.step < step]
        kept = None
        if len(steps := {m.step for m in old}) >= STEPS:
            since = min(m.number for m in old)
            junction = _junction(fns, since, first)
            if junction is not None:
                kept = SeenKept(len(steps), junction, inside=True)
            else:
                if self._holder is None:
                    self._holder = _holder({m.number for m in old}, set(fns), label)
                kept = SeenKept(len(steps), *self._holder)
        for fn in fns:
            number = fn._sequence_nr()
            if number >= first and type(fn).__name__ != "AccumulateGrad":
                mark = fn.metadata[_KEY] = _Mark()
                self._marked.append(_Marked(weakref.ref(mark), number, step, place))
                break
        return kept


def _junction(fns: Collection[GradFn], since: int, first: int) -> int | None:
    """Sequence number of the first new node that was computed from one of the kept graphs."""
    for fn in fns:
        number: int = fn._sequence_nr()
        if number >= first and type(fn).__name__ != "AccumulateGrad":
            for source, _ in fn.next_functions:
                if source is not None and since <= source._sequence_nr() < first:
                    return number
    return None


def _holder(
    marked: set[int], running: set[GradFn], label: Callable[[Tensor], str]
) -> tuple[int | None, str]:
    """The newest tensor that holds a marked node, wherever it is kept, and what it is called.

    Args:
        marked: sequence numbers of the marked nodes.
        running: the nodes that are about to run: what made these holds no others.
    """
    held: list[tuple[int, GradFn, Tensor]] = []
    with torch._C.DisableTorchFunction():
        for value in gc.get_objects():
            if issubclass(type(value), Tensor):
                with suppress(RuntimeError):  # a view that was changed in place under no_grad
                    fn: GradFn = value.grad_fn
                    if fn is not None and fn not in running and fn._sequence_nr() >= min(marked):
                        held.append((fn._sequence_nr(), fn, value))
    for number, fn, tensor in sorted(held, key=lambda each: -each[0]):
        if any(node._sequence_nr() in marked for node in connected([fn])[0]):
            return number, label(tensor)
    return None, ""
