"""Freeing a deep graph that Python has walked, without running out of stack.

PyTorch frees a graph node by node without recursion, except that it keeps the Python object of each
node that Python ever saw, and freeing through these takes about 200 bytes of stack a node: the
process dies when a chain of some 40,000 nodes is dropped in a thread with 8 MB (seen on 2.13 and
2.15). A walk makes those objects, so a walk has to see to it that the graph can be freed.

`brace` hangs a Brace on the nodes at every few hundred levels of depth. It holds what is below the
node, so that the node can be freed alone; then the Brace lets go of what it held, in a loop. It
lives and dies with the node, in the node's own `metadata`, and holds nothing that the node does not
hold anyway.
"""

from __future__ import annotations

import threading
from typing import Any

_SPAN = 256  # levels that are freed by recursion: 50 KB of stack, twice that at the bottom
_DEEP = 2000  # a graph with fewer levels is freed as PyTorch does
_KEY = "graphviz_torch.deep"


class _State(threading.local):
    waiting: list[dict[Any, None]] | None = None  # what the frees under way in this thread left


class Brace:
    """Holds the nodes below one node, and frees them after it."""

    __slots__ = ("below",)

    def __init__(self) -> None:
        self.below: dict[Any, None] = {}

    # The state is an argument for the sake of the interpreter's end, when globals are gone.
    def __del__(self, state: _State = _State()) -> None:  # noqa: B008
        if state.waiting is not None:
            state.waiting.append(self.below)
            return
        state.waiting = waiting = [self.below]
        del self.below
        try:
            while waiting:
                below = waiting.pop()
                while below:
                    below.popitem()
        finally:
            state.waiting = None


def brace(fns: list[Any], sources: list[tuple[tuple[Any, int], ...]]) -> None:
    """Make the graph of these live nodes safe to free.

    Args:
        fns: all nodes behind some outputs, inputs before users.
        sources: the `next_functions` of each.
    """
    if len(fns) < _DEEP:
        return
    depths: dict[Any, int] = {None: -1}
    for fn, edges in zip(fns, sources, strict=True):
        if len(edges) == 1:
            depths[fn] = depths[edges[0][0]] + 1
        else:
            depths[fn] = max([depths[source] for source, _ in edges], default=-1) + 1
    if max(depths.values()) < _DEEP:
        return
    for fn, edges in zip(fns, sources, strict=True):
        floor = depths[fn] // _SPAN * _SPAN
        if floor > _SPAN:
            # What lies in the lowest span needs no brace: there is no more than that below it.
            below = {source: None for source, _ in edges if _SPAN <= depths[source] < floor}
            if below:
                fn.metadata.setdefault(_KEY, Brace()).below.update(below)
