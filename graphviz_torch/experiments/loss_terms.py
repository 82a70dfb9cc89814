"""Find the terms that a loss adds up, and the divisor of each term, by reading the graph."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import NamedTuple

from ..graph import Graph

_AS_IT_IS = {
    "add",
    "sub",
    "neg",
    "clone",
    "view",
    "reshape",
    "squeeze",
    "to",
    "to_copy",
    "_to_copy",
}
_MAX_NODES = 4096  # largest number of nodes that a search visits


class Term(NamedTuple):
    """A scalar that is added to the loss."""

    node: int
    operation: str
    where: str
    divisor: float | None  # None if another operation weights the term


def terms(graph: Graph) -> list[Term]:
    """Return the terms of the graph's first output; [] if the output is not a scalar."""
    found: list[Term] = []
    stack: list[tuple[int, float | None]] = [(node, 1.0) for node, _ in graph.outputs[:1]]
    sources = _sources(graph)
    met: set[int] = set()
    while stack and len(met) < _MAX_NODES:
        number, divisor = stack.pop()
        node = graph.nodes[number]
        if number in met or _shape(graph, number) != ():
            continue
        met.add(number)
        kind, other = node.title, _number(node.attributes)
        below = [s for s in sources.get(number, ()) if _shape(graph, s) == ()]
        if kind == "mul":
            divisor = divisor if other is not None and abs(other) == 1 else None
        elif kind == "div":
            divisor = None if other is None or divisor is None else divisor * other
        elif kind not in _AS_IT_IS or not below:
            found.append(Term(number, kind, node.where, divisor))
            continue
        stack.extend((s, divisor) for s in below)
    return sorted(found, key=lambda term: term.node)


def sums_over(graph: Graph, term: Term, forward: Collection[int], count: int) -> int:
    """Return the number of elements that a term sums; 0 if it does not sum over samples.

    Args:
        graph: the graph of the loss.
        term: a term of the loss.
        forward: the nodes that the module's forward created.
        count: number of samples.
    """
    sources = _sources(graph)
    if term.operation != "sum" or count < 2:
        return 0
    for source in sources.get(term.node, ()):
        shape = _shape(graph, source)
        if not shape or shape[0] % count or graph.nodes[source].title == "stack":
            continue
        if any(node in forward for node in _ancestors(sources, source)):
            return 0 if _is_weighed(graph, sources, source, forward) else prod(shape)
    return 0


def is_forward_output(graph: Graph, forward: Collection[int]) -> bool:
    """Return whether only operations on scalars are between the module's forward and the loss."""
    sources = _sources(graph)
    stack, met = [node for node, _ in graph.outputs[:1]], set[int]()
    while stack and len(met) < _MAX_NODES:
        number = stack.pop()
        if number in met or _shape(graph, number) != ():
            continue
        if number in forward:
            return True
        met.add(number)
        stack.extend(sources.get(number, ()))
    return False


def _is_weighed(
    graph: Graph, sources: dict[int, list[int]], last: int, forward: Collection[int]
) -> bool:
    """Return whether an operation between the forward and the sum may divide by the batch size.

    Args:
        graph: the graph of the loss.
        sources: node -> nodes of its inputs.
        last: the node where the search starts.
        forward: the nodes of the forward, where the search ends.
    """
    stack, met = [last], set[int]()
    while stack and len(met) < _MAX_NODES:
        number = stack.pop()
        if number in met or number in forward:
            continue
        met.add(number)
        title = graph.nodes[number].title
        if title in ("div", "softmax", "_softmax", "logsumexp", "mean"):
            return True
        # A factor without a node in the graph is a number, or a tensor that needs no gradient.
        if title == "mul" and len(sources.get(number, ())) < 2:
            return True
        stack.extend(sources.get(number, ()))
    return False


def has_one_term_per_sample(graph: Graph, known: list[Term], count: int) -> bool:
    """Return whether the loss has `count` terms, each of which is computed from another sample.

    Args:
        graph: the graph of the loss.
        known: the terms of the loss.
        count: number of samples.
    """
    if count < 2 or len(known) != count:
        return False
    sources, rows = _sources(graph), set[str]()
    for term in known:
        own = {
            attribute
            for node in _ancestors(sources, term.node)
            if graph.nodes[node].title == "select" and "dim=0" in graph.nodes[node].attributes
            for attribute in graph.nodes[node].attributes
            if attribute.startswith("index=")
        }
        if len(own) != 1:
            return False
        rows |= own
    return len(rows) == count


def _ancestors(sources: dict[int, list[int]], number: int) -> set[int]:
    found: set[int] = set()
    stack = [number]
    while stack and len(found) < _MAX_NODES:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(sources.get(node, ()))
    return found


def _sources(graph: Graph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for edge in graph.edges:
        found.setdefault(edge.target, []).append(edge.source)
    return found


def _shape(graph: Graph, number: int) -> tuple[int, ...] | None:
    outputs = graph.nodes[number].outputs
    meta = outputs[0] if outputs else None
    return None if meta is None else tuple(meta.shape)


def _number(attributes: tuple[str, ...]) -> float | None:
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name == "other":
            try:
                return float(value)
            except ValueError:
                return None
    return None
