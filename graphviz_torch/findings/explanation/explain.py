"""`explain`: which way the gradient took from the loss to one parameter or node.

Where several ways lead there, the strongest is followed: from the target towards the loss, at each
node to the user whose own gradient has the largest norm.
"""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import overload

from ...graph import Cut, Edge, GraphLike, graph_of
from ...graph.text import printable
from ...graph.training.join import one_graph
from ..graph_reading import Reading
from ..rules.cuts import explained, upstream, word_of
from ..words import at
from .gradient_path import GradientPath, Waypoint
from .loss_table import LossTable, loss_table


@overload
def explain(graph: GraphLike, target: str | int) -> GradientPath: ...
@overload
def explain(graph: GraphLike) -> LossTable: ...
def explain(graph: GraphLike, target: str | int | None = None) -> GradientPath | LossTable:
    """The way of the gradient from the loss to one parameter or node, with what each node did.

    Without a target: which loss trains which network.

    Args:
        graph: a recording, its last backward, or a Graph; a trace has ways but no norms.
        target: a parameter's name, a label, or a node's id. Of nodes with one label, the last.
            None: all networks of the model, and all backwards of the recording.

    Raises:
        TypeError: if `graph` is not a graph and has none.
        ValueError: for a name or id that the graph does not have, with the nearest that it has.

    >>> import torch
    >>> from graphviz_torch import record
    >>> x = torch.ones(4, requires_grad=True)
    >>> with record() as recording:
    ...     (x * 3).sum().backward()
    >>> print(explain(recording, "x"))
    The gradient's path to x: 3 nodes
      node  operation  module  norm  factor
         2  sum                   1
         1  mul                   2       2
         0  x                     6       3
    It grew most from mul to x: 3 times.
    It arrived at x with a norm of 6.
    """
    if target is None:
        return loss_table(one_graph(graph)[0])
    reading = Reading(graph_of(graph))
    name, node = _target(reading, target)
    ways = _ways(reading)
    if node is None or not ways[node]:
        return _ended_at_a_cut(reading, name, node, ways)
    points = _points(reading, node, ways)
    cut = _cut(reading, name, node) if reading.blocked else None
    end = _end(reading, name, points) if cut is None else f"Backward did not start: {_done(cut)}"
    return GradientPath(reading.graph, name, points, ways[node], end)


def _ended_at_a_cut(reading: Reading, name: str, node: int | None, ways: list[int]) -> GradientPath:
    """The way as far as backward can come, and what cut it there, where that is known."""
    cut = _cut(reading, name, node)
    if cut is None:
        why = f"Backward cannot reach {name}: its output does not depend on it."
        return GradientPath(reading.graph, name, (), 0, why)
    after = next((i for i in cut.after if ways[i]), None)
    if after is None:
        why = f"Backward cannot reach {name}: {_done(cut)}"
        return GradientPath(reading.graph, name, (), 0, why)
    points = _points(reading, after, ways)
    why = f"It ended at {points[-1].text} and did not reach {name}: {_done(cut)}"
    return GradientPath(reading.graph, name, points, ways[after], why)


def _cut(reading: Reading, name: str, node: int | None) -> Cut | None:
    """What cut a parameter, or a node, from where backward started."""
    known = (cut for cut, parameter in explained(reading) if parameter.name == name)
    cuts = reading.graph.cuts if node is not None else ()
    behind = (cut for cut in reversed(cuts) if node in upstream(reading, cut.before, set()))
    return next(known, None) or next(behind, None)


def _done(cut: Cut) -> str:
    """Return a sentence such as "h was cut by detach() at train.py:7."."""
    what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
    return f"{what} was cut by {word_of(cut)}{at(cut.where)}."


def _target(reading: Reading, target: str | int) -> tuple[str, int | None]:
    """What to call the target, and its node; None for a parameter that is not in the graph."""
    count = len(reading.graph.nodes)
    nodes: dict[str, int | None] = {str(i): i for i in range(count)}
    nodes |= {node.label: node.id for node in reading.graph.nodes if node.label}
    nodes |= {p.name: p.node for p in reading.graph.parameters}
    name = str(target)
    if name in nodes:
        node = nodes[name]
        return (name, None) if node is None else (reading.call(node), node)
    names = [each for each in nodes if not each.isdigit()] or [f"0 to {count - 1}"]
    near = printable(", ".join(get_close_matches(name, names, n=3, cutoff=0.0)))
    raise ValueError(f"{name!r} is neither a parameter nor a label nor a node's id; near: {near}.")


def _ways(reading: Reading) -> list[int]:
    """For each node, how many ways lead to it from where backward started."""
    counts = [0] * len(reading.graph.nodes)
    for node in {node for node, _ in reading.graph.outputs}:
        counts[node] = 1
    for node in range(len(counts) - 1, -1, -1):  # users before inputs
        counts[node] += sum(counts[edge.target] for edge in reading.users[node])
    return counts


def _points(reading: Reading, target: int, ways: list[int]) -> tuple[Waypoint, ...]:
    """The nodes of the strongest way, the loss first."""
    lengths = _lengths(reading, ways)
    node, way = target, []
    while True:
        edges = [edge for edge in reading.users[node] if ways[edge.target]]
        if not edges:
            nr = next(nr for output, nr in reading.graph.outputs if output == node)
            way.append((node, nr, 1.0))
            break
        strengths = [_strength(reading, edge) for edge in edges]
        best = max(range(len(edges)), key=lambda i: (strengths[i], -lengths[edges[i].target]))
        total = sum(strengths)
        share = strengths[best] / total if 0 < total < math.inf else 1 / len(edges)
        way.append((node, edges[best].output_nr, share))
        node = edges[best].target
    points: list[Waypoint] = []
    extents: list[str | None] = []
    for node, nr, share in reversed(way):
        stats, before = reading.stats(node, nr), points[-1].norm if points else None
        norm = None if stats is None else stats.norm
        alike = extents[-1:] == [stats and stats.extent]  # a part and the whole are not compared
        factor = norm / before if norm is not None and before and alike else None
        extents.append(stats and stats.extent)
        bad = 0 if stats is None else stats.nonfinite
        call, module = reading.names.get(node), reading.graph.nodes[node].module
        title = call or reading.graph.nodes[node].title
        points.append(Waypoint(node, nr, title, module, norm, bad, factor, share))
    return tuple(points)


def _lengths(reading: Reading, ways: list[int]) -> list[int]:
    """For each node, how many edges part it from where backward started, at least."""
    lengths = [0] * len(ways)
    for node in range(len(ways) - 1, -1, -1):
        behind = [lengths[edge.target] for edge in reading.users[node] if ways[edge.target]]
        lengths[node] = 1 + min(behind) if behind else 0
    return lengths


def _strength(reading: Reading, edge: Edge) -> float:
    """The largest norm that arrived at the node behind an edge; NaN is stronger than any."""
    arrived = [stats for stats in reading.graph.nodes[edge.target].grad_outputs if stats]
    if any(stats.nonfinite for stats in arrived):
        return math.inf
    return max((stats.norm for stats in arrived), default=0.0)


def _end(reading: Reading, name: str, points: tuple[Waypoint, ...]) -> str:
    """Where the gradient ended."""
    if not any(any(node.grad_outputs) for node in reading.graph.nodes):
        return "No norms: this graph has no gradients. Run forward and backward in record()."
    bad = next((point for point in points if point.nonfinite), None)
    if bad is not None:
        return f"It has NaN or Inf from {bad.text} on."
    last = None
    for point in points:
        if point.norm is None and last is not None:
            return f"It ended at {last.text}, which gave none to {point.text}."
        if point.norm == 0:
            return f"It ended at {point.text}: there it is zero."
        last = point if point.norm is not None else last
    if last is None:
        return f"None arrived at any node on the way to {name}."
    return f"It arrived at {name} with a norm of {last.norm_text}."
