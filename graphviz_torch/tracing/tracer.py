"""Walk an autograd graph: list live nodes in topological order, and build a `Graph` from them.

Nothing is run again, no saved tensor is unpacked, no hook is left, and no reference to a tensor or
node remains after `trace` returns.

A walk creates a Python object for each node, and these objects make a deep graph dangerous to free.
PyTorch frees a graph without such objects node by node, without recursion. Freeing the objects is
recursive, and takes about 200 bytes of stack per node. The process crashes when a chain of about
40,000 such nodes is freed in a thread with 8 MB of stack (seen on 2.13 and 2.15).

To prevent this, `brace` attaches a `Brace` to nodes at every few hundred levels of depth. A `Brace`
refers to the nodes directly upstream of its own node. When its own node is freed, the `Brace`
releases these nodes in a loop instead of by recursion. It is stored in the node's `metadata`, is
freed with the node, and keeps nothing alive that the node does not keep alive anyway.
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
from ..graph.module_paths import cut_paths
from ..graph.text import shorten, type_text
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import flatten, is_nesting
from ..internals.tensors.small_values import small_values
from .names import Names, caller_names, classes_along
from .nodes import GradFn, Ids, NodeData, grad_fn_of, read_nodes

_SPAN = 256  # number of levels that are freed by recursion, with 50 to 100 KB of stack
_MAX_SAFE_DEPTH = 2000  # a graph with fewer levels is freed safely without Braces
_METADATA_KEY = "graphviz_torch.deep"


class _State(threading.local):
    waiting: list[dict[Any, None]] | None = None  # nodes that this thread still has to release


class Brace:
    """An object attached to an autograd node, which refers to the nodes directly upstream.

    When the node is freed, the brace releases these upstream nodes in a loop instead of by
    recursion, which could overflow the stack.
    """

    __slots__ = ("below",)

    def __init__(self) -> None:
        self.below: dict[Any, None] = {}

    # The state is a default argument, because globals may already be deleted at interpreter exit.
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
    """Attach a `Brace` to nodes of a deep graph: freeing the graph then cannot overflow the stack.

    Args:
        ids: id of each node, in topological order.
        edges: the edges, in order of their targets.
    """
    if len(ids) < _MAX_SAFE_DEPTH:
        return
    depths = [0] * len(ids)
    for source, target, _, _ in edges:
        if depths[target] <= depths[source]:
            depths[target] = depths[source] + 1
    if max(depths) < _MAX_SAFE_DEPTH:
        return
    fns = list(ids)
    for source, target, _, _ in edges:
        # The nodes of the lowest levels need no Brace, because few levels are upstream of them.
        if _SPAN <= depths[source] < depths[target] // _SPAN * _SPAN:
            fn = fns[target]
            fn.metadata.setdefault(_METADATA_KEY, Brace()).below[fns[source]] = None


Sources = tuple[tuple[GradFn | None, int], ...]  # `next_functions` of a node

_new: Any = tuple.__new__  # creates an Edge without a Python-level call


def iter_grad_fns(outputs: Any) -> list[GradFn]:
    """Return the live nodes behind `outputs`, in the topological order of `trace(outputs).nodes`.

    Drop the list soon: it keeps the graph, and all tensors that the graph saved, alive.

    Raises:
        TypeError, ValueError: as for `trace`.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> [fn.name() for fn in iter_grad_fns((x * 2).sum())]
    ['torch::autograd::AccumulateGrad', 'MulBackward0', 'SumBackward0']
    """
    return list(collect_nodes([root for root, _ in roots(outputs)])[0])


def roots(outputs: Any) -> list[tuple[GradFn, int]]:
    """Return (autograd node, output_nr) of each tensor in `outputs`, in order.

    In containers, tensors that require no gradient are skipped.

    Raises:
        TypeError, ValueError: as for `trace`.
    """
    tensors = flatten(outputs)
    if not tensors:
        if is_nesting(outputs):
            raise ValueError(
                f"outputs contains no tensor: {shorten(repr(outputs), 60)}. "
                "Pass the tensors that you would call backward() on."
            )
        raise TypeError(
            f"outputs is {type_text(outputs)}, not a tensor: {shorten(repr(outputs), 60)}. "
            "Pass a tensor, or a list, tuple, dict or dataclass of tensors."
        )
    with unseen_calls():
        found = [end for _, tensor in tensors if (end := _gradient_edge(tensor)) is not None]
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
    """Return the autograd graph behind `outputs`, without running anything.

    Call it before or after `backward()`, which frees saved tensors but no nodes. The current values
    of small outputs, and of small leaves that are not parameters, are read. If they are on another
    device than the CPU, this waits for the device.

    Args:
        outputs: a tensor, or nested lists, tuples, dicts and dataclasses of tensors.
        names: a dict of tensors by name; an `nn.Module`, which gives the names of its parameters;
            `{}` for no names; or None to read the caller's variables.

    Returns:
        A Graph with one node per autograd node, in a topological order that is the same in every
        run. `Node.module` is set if the parameters' names make it certain. `Graph.transfers` are
        the copies between devices that backward will make.

    Raises:
        TypeError: if `outputs` is neither a tensor nor a container, or if `names` is none of the
            above.
        ValueError: if no tensor in `outputs` has an autograd graph.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [(node.name, node.label) for node in trace(y).nodes]
    [('AccumulateGrad', 'x'), ('MulBackward0', ''), ('SumBackward0', 'y')]
    """
    ends = roots(outputs)
    ids, edges = collect_nodes([fn for fn, _ in ends])
    with unseen_calls():
        leaves = [fn.variable for fn in ids if type(fn).__name__ == "AccumulateGrad"]
    named = caller_names(names, outputs, leaves)
    found = read_nodes(ids, edges, ends, named)
    return _graph(found, names, _values(outputs, found, ids))


@with_gc_disabled
def _graph(found: NodeData, names: Names, values: list[Any]) -> Graph:
    modules = found.modules()
    if not isinstance(names, Module):
        return cut_paths(found.graph(module=modules, values=values))
    # The root module gets no class, because its own nodes cannot be distinguished from nodes
    # outside of all modules.
    classes = {**classes_along(names.named_modules()), "": ""}
    kinds = [classes.get(m, "") for m in modules]
    return cut_paths(found.graph(module=modules, module_class=kinds, values=values))


def _values(outputs: Any, found: NodeData, ids: Ids) -> list[Any]:
    """Return the values of small outputs and small leaves, for the field `Node.values`.

    Parameters are left out.

    Args:
        outputs: the traced outputs.
        found: the data that was read from the nodes.
        ids: ids of the live nodes.
    """
    columns, fns = found.columns, list(ids)
    known: dict[tuple[int, int], Tensor] = {}
    with unseen_calls():
        for i in found.leaves.values():
            if columns["leaf"][i] == "tensor":
                known[i, 0] = fns[i].variable
        for _, tensor in flatten(outputs):
            if (end := _gradient_edge(tensor)) is not None:
                known[ids[end[0]], end[1]] = tensor
    column: list[Any] = [()] * len(fns)
    for (i, output_nr), values in small_values(known).items():
        row = list(column[i]) or [None] * len(columns["outputs"][i])
        row[output_nr] = values
        column[i] = tuple(row)
    return column


@with_gc_disabled
def collect_nodes(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """Return ids of all nodes upstream of `starts`, in topological order, and the edges.

    An object is attached to some nodes of a deep graph, so that freeing the graph does not overflow
    the stack (see `brace`). The returned
    ids keep the nodes alive.
    """
    ids, edges = _sort_topologically(starts)
    brace(ids, edges)
    return ids, edges


def _sort_topologically(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """Return the ids of the nodes upstream of `starts`, in topological order, and the edges.

    The edges are sorted by target and input_nr.
    """
    # An explicit stack is used, because recursion would fail at about 1,000 nodes. `order` keeps
    # the nodes alive, because a node's Python object might otherwise be freed and its address be
    # reused.
    # The graph has no cycles, so a node that is reached again has been visited completely.
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
        if source is not None  # an input that requires no gradient has no edge
    ]
    return ids, tuple(map(_new, repeat(Edge), rows))


def _gradient_edge(tensor: Tensor) -> tuple[GradFn, int] | None:
    fn = grad_fn_of(tensor)
    return None if fn is None else (fn, tensor.output_nr)
