"""`explain` and `GradientPath`: the path of the gradient from the loss to one parameter or node.

If several paths reach the target, the strongest is shown. The search starts at the target. From
each node the search continues with the user of this node whose gradient has the largest norm, until
it reaches the loss.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from difflib import get_close_matches
from typing import Any, overload

from ..graph import Cut, Edge, Finding, Graph, GraphLike, Untracked, graph_of
from ..graph.immutable import immutable
from ..graph.join import one_graph
from ..graph.text import printable
from ..graph.units import number_text
from .graph_reading import Reading
from .loss_table import LossTable, loss_table
from .rules.cuts import cause_text, match_cuts, upstream
from .words import at


@overload
def explain(graph: GraphLike, target: str | int) -> GradientPath: ...
@overload
def explain(graph: GraphLike) -> LossTable: ...
def explain(graph: GraphLike, target: str | int | None = None) -> GradientPath | LossTable:
    """Return the path of the gradient, with its norms, from the loss to a parameter or node.

    Without a target, return a table that shows which loss trains which network.

    Args:
        graph: a recording, whose last backward is used, or a Graph. A trace has paths but no norms.
        target: a parameter's name, a label, or a node's id. If several nodes have the label, the
            last node is used. None: return the table, for all backwards of the recording.

    Raises:
        TypeError: if `graph` is neither a recording nor a Graph.
        ValueError: if nothing in the graph has this name or id; the message lists similar names.

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
    The norm grew most from mul to x: 3 times.
    The gradient arrived at x with a norm of 6.
    """
    if target is None:
        return loss_table(one_graph(graph)[0])
    reading = Reading(graph_of(graph))
    name, node = _target(reading, target)
    paths = _count_paths(reading)
    if node is None or not paths[node]:
        return _path_to_cut(reading, name, node, paths)
    points = _points(reading, node, paths)
    cut = _cut(reading, name, node) if reading.loss_has_no_grad else None
    end = _end(reading, name, points)
    if cut is not None:
        end = f"Backward did not start: {_done(reading, cut)}"
    return GradientPath(reading.graph, name, points, paths[node], end)


def _path_to_cut(reading: Reading, name: str, node: int | None, paths: list[int]) -> GradientPath:
    """Return the path from the loss to the cut (such as detach) before the target, if known.

    Args:
        reading: the graph.
        name: name of the target.
        node: node of the target; None if it is not in the graph.
        paths: for each node, the number of paths from the roots of backward.
    """
    cut = _cut(reading, name, node)
    if cut is None:
        why = f"Backward cannot reach {name}: {_reason_unreached(reading, name)}"
        return GradientPath(reading.graph, name, (), 0, why)
    after = next((i for i in cut.after if paths[i]), None)
    if after is None:
        why = f"Backward cannot reach {name}: {_done(reading, cut)}"
        return GradientPath(reading.graph, name, (), 0, why)
    points = _points(reading, after, paths)
    why = f"The gradient ended at {points[-1].text} and did not reach {name}: {_done(reading, cut)}"
    return GradientPath(reading.graph, name, points, paths[after], why)


def _cut(reading: Reading, name: str, node: int | None) -> Cut | None:
    """Return the cut (a call such as detach) between the loss and a target; None if unknown.

    Args:
        reading: the graph.
        name: name of the target, which is a parameter or node.
        node: node of the target; None if it is not in the graph.
    """
    known = (cut for cut, parameter in match_cuts(reading) if parameter.name == name)
    cuts = reading.graph.cuts if node is not None else ()
    upstream_of = (cut for cut in reversed(cuts) if node in upstream(reading, cut.before, set()))
    return next(known, None) or next(upstream_of, None)


def _reason_unreached(reading: Reading, name: str) -> str:
    """Return why no path leads to a parameter or node, if no cut (such as detach) explains it.

    Args:
        reading: the graph.
        name: name of the parameter or node.
    """
    parameter = next((p for p in reading.graph.parameters if p.name == name), None)
    if parameter is not None and not parameter.requires_grad:
        return "it is frozen (requires_grad is False)."
    call = _untracked_module(reading, name)
    if call is not None and call.reason:
        return f"{call.label} ran under {call.reason}."
    return "the loss does not depend on it."


def _untracked_module(reading: Reading, name: str) -> Untracked | None:
    """Return the module call that used a parameter but created no autograd node, or None."""
    rows = [row for row in reading.graph.untracked if row.kind == "module"]
    return next((row for row in rows if name.startswith(f"{row.label}.")), None)


def _done(reading: Reading, cut: Cut) -> str:
    """Return a sentence such as "h was cut by detach() at train.py:7."."""
    call = _untracked_module(reading, cut.label)
    if call is not None:
        return f"{call.label} ran under {cause_text(cut)}{at(cut.where)}."
    what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
    return f"{what} was cut by {cause_text(cut)}{at(cut.where)}."


def _target(reading: Reading, target: str | int) -> tuple[str, int | None]:
    """Return the name and node of the target.

    The node is None for a parameter that is not in the graph.

    Raises:
        ValueError: if `target` is neither a parameter's name, nor a label, nor a node's id.
    """
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
    raise ValueError(
        f"{name!r} is neither a parameter's name, nor a label, nor a node's id. Similar: {near}."
    )


def _count_paths(reading: Reading) -> list[int]:
    """Return the number of paths to each node from the roots of backward."""
    counts = [0] * len(reading.graph.nodes)
    for node in {node for node, _ in reading.graph.outputs}:
        counts[node] = 1
    for node in range(len(counts) - 1, -1, -1):  # users before inputs
        counts[node] += sum(counts[edge.target] for edge in reading.users[node])
    return counts


def _points(reading: Reading, target: int, paths: list[int]) -> tuple[Waypoint, ...]:
    """Return the nodes of the strongest path, the loss first.

    Args:
        reading: the graph.
        target: node at which the path ends.
        paths: for each node, the number of paths from the roots of backward.
    """
    lengths = _lengths(reading, paths)
    node, path = target, []
    while True:
        edges = [edge for edge in reading.users[node] if paths[edge.target]]
        if not edges:
            nr = next(nr for output, nr in reading.graph.outputs if output == node)
            path.append((node, nr, 1.0))
            break
        strengths = [_strength(reading, edge) for edge in edges]
        best = max(range(len(edges)), key=lambda i: (strengths[i], -lengths[edges[i].target]))
        total = sum(strengths)
        share = strengths[best] / total if 0 < total < math.inf else 1 / len(edges)
        path.append((node, edges[best].output_nr, share))
        node = edges[best].target
    points: list[Waypoint] = []
    extents: list[str | None] = []
    for node, nr, share in reversed(path):
        stats, before = reading.stats(node, nr), points[-1].norm if points else None
        norm = None if stats is None else stats.norm
        # Norms of a shard and of a whole gradient are not comparable.
        comparable = extents[-1:] == [stats and stats.extent]
        factor = norm / before if norm is not None and before and comparable else None
        extents.append(stats and stats.extent)
        bad = 0 if stats is None else stats.nonfinite
        call, module = reading.names.get(node), reading.graph.nodes[node].module
        title = call or reading.graph.nodes[node].title
        points.append(Waypoint(node, nr, title, module, norm, bad, factor, share))
    return tuple(points)


def _lengths(reading: Reading, paths: list[int]) -> list[int]:
    """Return the number of edges of the shortest path from a root of backward to each node."""
    lengths = [0] * len(paths)
    for node in range(len(paths) - 1, -1, -1):  # users before inputs
        users = [lengths[edge.target] for edge in reading.users[node] if paths[edge.target]]
        lengths[node] = 1 + min(users) if users else 0
    return lengths


def _strength(reading: Reading, edge: Edge) -> float:
    """Return the largest gradient norm at the target of an edge; infinity if it is not finite."""
    arrived = [stats for stats in reading.graph.nodes[edge.target].grad_outputs if stats]
    if any(stats.nonfinite for stats in arrived):
        return math.inf
    return max((stats.norm for stats in arrived), default=0.0)


def _end(reading: Reading, name: str, points: tuple[Waypoint, ...]) -> str:
    """Return a sentence that says where the gradient arrived or ended."""
    if not any(any(node.grad_outputs) for node in reading.graph.nodes):
        return "No norms: this graph has no gradients. Run forward and backward in record()."
    bad = next((point for point in points if point.nonfinite), None)
    if bad is not None:
        return f"The gradient has NaN or Inf from {bad.text} on."
    last = None
    for point in points:
        if point.norm is None and last is not None:
            return f"The gradient ended at {last.text}, which passed none to {point.text}."
        if point.norm == 0:
            return f"The gradient ended at {point.text}, where it is zero."
        last = point if point.norm is not None else last
    if last is None:
        return f"No gradient arrived at any node on the path to {name}."
    return f"The gradient arrived at {name} with a norm of {last.norm_text}."


_HEAD = ("node", "operation", "module", "norm", "factor")
_MAX_PATHS_SHOWN = 1_000_000


@immutable
class Waypoint:
    """A node on the path of a gradient."""

    node: int  # id of the node in the graph
    output_nr: int  # the output at which the gradient arrived
    name: str  # a parameter's name, a label, or the operation
    module: str
    norm: float | None  # norm of the gradient that arrived; None if unknown
    nonfinite: int  # number of elements of that gradient that are NaN or Inf
    factor: float | None  # the norm divided by the previous node's norm
    # Fraction of the node's gradient that arrives along this path, estimated from the norms of the
    # gradients at the node's users.
    share: float

    @property
    def text(self) -> str:
        """The operation and its module, such as "mul in encoder"."""
        inside = f" in {self.module}" if self.module and "." not in self.name else ""
        return f"{self.name}{inside}"

    @property
    def norm_text(self) -> str:
        """The norm with four digits, and the number of NaN or Inf elements; "" if unknown."""
        if self.norm is None:
            return ""
        return number_text(self.norm) + (f" and {self.nonfinite} NaN or Inf" * bool(self.nonfinite))


@immutable(slots=False)
class GradientPath:
    """The path of a gradient from the loss to one node; `print` shows a table.

    `draw_graph(path)` draws the path alone; `draw_graph(graph, findings=[path.mark()])` marks it in
    the whole graph. Returned by `explain`.

    >>> import torch
    >>> from graphviz_torch import explain, record
    >>> with record() as recording:
    ...     x = torch.ones(3, requires_grad=True)
    ...     (x * 2).sum().backward()
    >>> [(point.name, point.factor) for point in explain(recording, "x").points[-1:]]
    [('x', 2.0)]
    """

    whole: Graph = field(repr=False)
    target: str
    points: tuple[Waypoint, ...]  # the loss first; () if backward cannot reach the node
    path_count: int  # number of paths to the target; `points` shows the strongest one
    end: str  # a sentence that says where the gradient ended

    @property
    def shrank(self) -> Waypoint | None:
        """The point at which the gradient norm shrank most; None if it never shrank."""
        points = [p for p in self.points if p.factor is not None and p.factor < 1]
        return min(points, key=lambda p: p.factor or 0.0, default=None)

    @property
    def grew(self) -> Waypoint | None:
        """The point at which the gradient norm grew most; None if it never grew."""
        points = [p for p in self.points if p.factor is not None and p.factor > 1]
        return max(points, key=lambda p: p.factor or 0.0, default=None)

    @property
    def share(self) -> float:
        """The estimated fraction of the target's gradient that arrives along this path."""
        return math.prod(point.share for point in self.points)

    @property
    def graph(self) -> Graph:
        """A graph of only the path's nodes and edges."""
        ids = {point.node: i for i, point in enumerate(reversed(self.points))}
        nodes = (self.whole.nodes[node]._replace(id=i, saved=()) for node, i in ids.items())
        numbers = [point.output_nr for point in reversed(self.points)]
        edges: list[Edge] = []
        for edge in self.whole.edges:
            i, j = ids.get(edge.source), ids.get(edge.target)
            if i is not None and j == i + 1 and edge.output_nr == numbers[i]:
                edges.append(edge._replace(source=i, target=j))
        parameters = tuple(
            replace(p, node=ids[p.node]) for p in self.whole.parameters if p.node in ids
        )
        outputs = ((len(ids) - 1, numbers[-1]),) if ids else ()
        return Graph(tuple(nodes), tuple(edges), outputs, parameters=parameters)

    def mark(self) -> Finding:
        """Return the path as a finding, so that a drawing of the whole graph marks it."""
        nodes = tuple(point.node for point in self.points)
        message = f"The gradient's path to {self.target}."
        return Finding("gradient-path", "info", message, nodes=nodes)

    def to_text(self) -> str:
        """Return a table of the nodes on the gradient's path, followed by a few sentences.

        The sentences say where the norm shrank and grew most, and which node the gradient reached.
        """
        count = len(self.points)
        head = f"The gradient's path to {self.target}: {count} node{'' if count == 1 else 's'}"
        if self.path_count > 1:
            count_known = self.path_count <= _MAX_PATHS_SHOWN
            number = f"{self.path_count:,}" if count_known else "more than a million"
            head += f", the strongest of {number} paths"
            if self._has_norms:
                share = number_text(100 * self.share, 3)
                head += f" ({share} % of the gradient, estimated from norms)"
        if self.whole.step.loss_scale is not None:
            head += f"; the loss was multiplied by {number_text(self.whole.step.loss_scale)}"
        lines = [head, *_table([_HEAD, *map(_row, self.points)])] if count else []
        for point, done in ((self.shrank, "shrank"), (self.grew, "grew")):
            if point is not None and point.factor is not None:
                # The backward of the previous node changed the norm.
                before = self.points[self.points.index(point) - 1]
                place = f"from {before.text} to {point.text}"
                by = f"{number_text(point.factor)} times"
                lines.append(
                    f"The norm {done} most {place}: {by}."
                    if point.factor
                    else f"The norm became zero {place}."
                )
        return "\n".join(map(printable, [*lines, self.end]))

    def __str__(self) -> str:
        return self.to_text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        drawn = self.graph._repr_mimebundle_(include, exclude) if self.points else {}
        return {**drawn, "text/plain": self.to_text()}

    @property
    def _has_norms(self) -> bool:
        return any(point.norm is not None for point in self.points)


def _row(point: Waypoint) -> tuple[str, ...]:
    factor = "" if point.factor is None else number_text(point.factor)
    return str(point.node), printable(point.name), printable(point.module), point.norm_text, factor


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines with aligned columns: text left-aligned, numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in (1, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
