"""What a loss is the sum of, read from its graph: its terms, and what each is divided by."""

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
_MOST = 4096  # nodes that are looked at


class Term(NamedTuple):
    """A number that a loss adds."""

    node: int
    operation: str
    where: str
    divisor: float | None  # None: it is weighed in another way


def terms(graph: Graph) -> list[Term]:
    """The terms of the graph's first output, if that is one number."""
    found: list[Term] = []
    stack: list[tuple[int, float | None]] = [(node, 1.0) for node, _ in graph.outputs[:1]]
    sources = _sources(graph)
    met: set[int] = set()
    while stack and len(met) < _MOST:
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
    """How many numbers a term sums that a forward made of so many samples; 0: it is not a sum.

    Args:
        graph: of the loss.
        term: of it.
        forward: the nodes that the forward made.
        count: of samples.
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


def is_made_by(graph: Graph, forward: Collection[int]) -> bool:
    """Is the loss one number of a forward, with at most operations on numbers behind it."""
    sources = _sources(graph)
    stack, met = [node for node, _ in graph.outputs[:1]], set[int]()
    while stack and len(met) < _MOST:
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
    """Are the numbers divided, or multiplied by what may count them, behind the forward."""
    stack, met = [last], set[int]()
    while stack and len(met) < _MOST:
        number = stack.pop()
        if number in met or number in forward:
            continue
        met.add(number)
        title = graph.nodes[number].title
        if title in ("div", "softmax", "_softmax", "logsumexp", "mean"):
            return True
        if title == "mul" and len(sources.get(number, ())) < 2:  # by a number, or by data
            return True
        stack.extend(sources.get(number, ()))
    return False


def one_for_each(graph: Graph, known: list[Term], count: int) -> bool:
    """Is there a term for each of so many samples, each of which comes from its row alone."""
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
    while stack and len(found) < _MOST:
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
