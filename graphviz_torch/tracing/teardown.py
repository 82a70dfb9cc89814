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
from collections.abc import Iterable
from typing import Any

from ..graph import Edge

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


def brace(ids: dict[Any, int], edges: Iterable[Edge]) -> None:
    """Make the graph of these live nodes safe to free.

    Args:
        ids: the id of each node behind some outputs, in order, inputs before users.
        edges: their edges, in the order of the targets.
    """
    if len(ids) < _DEEP:
        return
    depths = [0] * len(ids)
    for source, target, _, _ in edges:
        if depths[target] <= depths[source]:
            depths[target] = depths[source] + 1
    if max(depths) < _DEEP:
        return
    fns = list(ids)
    for source, target, _, _ in edges:
        # What lies in the lowest span needs no brace: there is no more than that below it.
        if _SPAN <= depths[source] < depths[target] // _SPAN * _SPAN:
            fn = fns[target]
            fn.metadata.setdefault(_KEY, Brace()).below[fns[source]] = None
