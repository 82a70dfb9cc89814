"""Walking an autograd graph: live `grad_fn`s in topological order, and the `Graph` made of them.

Nothing is re-run, no saved tensor is unpacked, no hook is left, and no tensor or node is held once
`trace` has returned.

It can be freed without running out of stack, however deep. PyTorch frees it node by node without
recursion, except that it keeps the Python object of each node that Python ever saw, and freeing
through these takes about 200 bytes of stack a node: the process dies when a chain of some 40,000
nodes is dropped in a thread with 8 MB (seen on 2.13 and 2.15). A walk makes those objects, so a
walk has to see to it that the graph can be freed.

`brace` hangs a Brace on the nodes at every few hundred levels of depth. It holds what is below the
node, so that the node can be freed alone; then the Brace lets go of what it held, in a loop. It
lives and dies with the node, in the node's own `metadata`, and holds nothing that the node does not
hold anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from torch import Tensor
from torch.nn import Module

from ..graph import Edge, Graph
from ..graph.gc import with_gc_disabled
from ..graph.text import shortened, type_text
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import flatten, is_nesting
from .names import Names, caller_names, classes_along
from .nodes import GradFn, Ids, Reading, made_by, read

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
        # A node of the lowest span needs no brace: fewer levels than a span lie below it.
        if _SPAN <= depths[source] < depths[target] // _SPAN * _SPAN:
            fn = fns[target]
            fn.metadata.setdefault(_KEY, Brace()).below[fns[source]] = None


Sources = tuple[tuple[GradFn | None, int], ...]  # `next_functions` of a node

_new: Any = tuple.__new__  # an Edge from a row of its fields, without a call of Python's


def walk(outputs: Any) -> list[GradFn]:
    """The live nodes behind `outputs`, in the order of `trace(outputs).nodes`: inputs first.

    Hold the list only as long as you need it: it keeps the graph, and what the graph saved, alive.

    Raises:
        TypeError, ValueError: as `trace`.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> [fn.name() for fn in walk((x * 2).sum())]
    ['torch::autograd::AccumulateGrad', 'MulBackward0', 'SumBackward0']
    """
    return list(connected([root for root, _ in roots(outputs)])[0])


def roots(outputs: Any) -> list[tuple[GradFn, int]]:
    """The live node and `output_nr` behind each tensor of `outputs`, in the order given.

    In a nesting, tensors that require no gradient are passed over.

    Raises:
        TypeError, ValueError: as `trace`.
    """
    tensors = flatten(outputs)
    if not tensors:
        if is_nesting(outputs):
            raise ValueError(
                f"outputs holds no tensor: {shortened(repr(outputs), 60)}. "
                "Pass what you would call backward() on."
            )
        raise TypeError(
            f"outputs is {type_text(outputs)}, not a tensor: {shortened(repr(outputs), 60)}. "
            "Pass a tensor, or a list, tuple, dict or dataclass of tensors."
        )
    with unseen_calls():
        found = [end for _, tensor in tensors if (end := _end(tensor)) is not None]
    if not found:
        path, tensor = tensors[0]
        where = f"outputs{'.' if path[:1] not in ('', '[') else ''}{path}"
        others = f", and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        raise ValueError(
            f"{where} ({tensor_meta(tensor)}){others}: no autograd graph: requires_grad is "
            "False. Was it computed under torch.no_grad() or inference_mode(), or detached?"
        )
    return found


def trace(outputs: Any, *, names: Names = None) -> Graph:
    """The autograd graph behind `outputs`, read without running anything.

    It may be called before and after `backward()`: nodes, edges and shapes outlive the saved
    tensors that backward frees.

    Args:
        outputs: a tensor, or any nesting of lists, tuples, dicts and dataclasses of tensors.
        names: what to call the tensors: a dict of tensors by name, an `nn.Module` (its parameters'
            names), `{}` for no names; None reads the caller's variables.

    Returns:
        A Graph with a node for every autograd node, in topological order, inputs before users; the
        order is the same on every run. `module` is filled in where the parameters' names tell it
        with certainty; `transfers` holds the copies between devices that backward will make.

    Raises:
        TypeError: if `outputs` is neither a tensor nor a nesting, or `names` none of the above.
        ValueError: if no tensor in it has an autograd graph.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [(node.name, node.label) for node in trace(y).nodes]
    [('AccumulateGrad', 'x'), ('MulBackward0', ''), ('SumBackward0', 'y')]
    """
    ends = roots(outputs)
    named = caller_names(names, outputs)
    ids, edges = connected([fn for fn, _ in ends])
    return _graph(read(ids, edges, ends, named), names)


@with_gc_disabled
def _graph(found: Reading, names: Names) -> Graph:
    modules = found.modules()
    if not isinstance(names, Module):
        return found.graph(module=modules)
    # What the root itself makes is not told from what is made outside.
    classes = {**classes_along(names.named_modules()), "": ""}
    return found.graph(module=modules, module_class=[classes.get(m, "") for m in modules])


@with_gc_disabled
def connected(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """All live nodes behind `starts` with their ids, inputs before users, and their edges.

    Makes the graph safe to free. The ids hold its nodes.
    """
    ids, edges = _ordered(starts)
    brace(ids, edges)
    return ids, edges


def _ordered(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """All nodes behind `starts`, inputs before users, and their edges by target and `input_nr`."""
    # Explicit stack: a recursive walk dies at about 1,000 nodes. The nodes are held meanwhile, for
    # a node's Python object may die with its last reference and give its address to another.
    # The graph has no cycle, so a node that is met again is there by then.
    order: dict[GradFn, Sources] = {}
    stack: list[tuple[GradFn, Sources, Iterator[tuple[GradFn | None, int]]]] = []
    for start in starts:
        if start in order:
            continue
        fn, sources = start, start.next_functions
        rest = iter(sources)
        while True:
            for source, _ in rest:
                if source not in order and source is not None:
                    below = source.next_functions
                    if below:
                        stack.append((fn, sources, rest))
                        fn, sources, rest = source, below, iter(below)
                        break
                    order[source] = below
            else:
                order[fn] = sources
                if not stack:
                    break
                fn, sources, rest = stack.pop()
    ids = {fn: i for i, fn in enumerate(order)}
    rows = [
        (ids[source], target, output_nr, input_nr)
        for target, sources in enumerate(order.values())
        for input_nr, (source, output_nr) in enumerate(sources)
        if source is not None  # an input that needs no gradient has no edge
    ]
    return ids, tuple(map(_new, repeat(Edge), rows))


def _end(tensor: Tensor) -> tuple[GradFn, int] | None:
    fn = made_by(tensor)
    return None if fn is None else (fn, tensor.output_nr)
