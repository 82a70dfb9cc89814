"""`GradientPath`, the path of a gradient: it prints as a table and can be drawn."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any

from ...graph import Edge, Finding, Graph
from ...graph.immutable import immutable
from ...graph.text import printable
from ...graph.units import number_text

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
