"""Two graphs: which nodes and edges were added, removed or changed.

A node counts as changed when the shape, dtype or device of an output, an attribute that does not
follow from shapes, the gradient it received, or its time differs. Labels, modules and lines do not
count: they only help to find the pairs.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..graph import Edge, GradientStats, Graph, GraphLike, Node, graph_of
from ..graph.column import declared, recorded
from .matching import match

Mark = Literal["added", "removed", "changed"]

# Two runs of the same program differ by this much: float32 sums in another order, relative.
GRADIENT_TOLERANCE = 1e-4
# And timings of the same node easily by half; below a tenth of a millisecond they are noise.
TIME_TOLERANCE = 1.0
_SHORTEST = 1e-4
_COLORS = {"+": "#1a7f37", "-": "#c22a1e", "~": "#9a6700"}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing about a node that is in both graphs, and that differs."""

    a: int  # the node's id in the first graph
    b: int  # and in the second
    # "shape", "dtype", "device", "attribute", "gradient", "time", or a compared field's title.
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class GraphDiff:
    """What `b` has and `a` has not, the other way round, and what changed; false if nothing did.

    >>> import torch
    >>> from graphviz_torch import diff, trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> changed = diff(trace((x * 2).sum()), trace((x * 2).sin().sum()))
    >>> print(changed)
    3 -> 4 nodes: 1 added, 0 removed, 0 changed; 2 -> 3 edges: 2 added, 1 removed
    + sin f32[3] cpu
    - edge mul -> sum, input 0
    """

    a: Graph
    b: Graph
    pairs: tuple[tuple[int, int], ...]  # ids in a and b of what is in both
    added: tuple[int, ...]  # ids in b
    removed: tuple[int, ...]  # ids in a
    changed: tuple[Change, ...]
    added_edges: tuple[Edge, ...]  # with ids of b
    removed_edges: tuple[Edge, ...]  # with ids of a
    titles: tuple[str, str] = ("", "")  # what a reader calls the two

    @property
    def direction(self) -> str:
        """ "From MLP to Detached layer"; without titles, "From the first graph to the second"."""
        before, after = self.titles
        return f"From {before or 'the first graph'} to {after or 'the second'}"

    def __bool__(self) -> bool:
        edges = self.added_edges or self.removed_edges
        return bool(self.added or self.removed or self.changed or edges)

    def to_text(self, *, limit: int = 100) -> str:
        """The differences, a line for each: `+` added, `-` removed, `~` changed.

        Args:
            limit: lines to show; the last one says how many are left out.
        """
        if not self:
            return f"No difference in {len(self.b.nodes)} nodes and {len(self.b.edges)} edges."
        lines = list(self._lines())
        shown = lines[:limit]
        if len(lines) > limit:
            shown.append(f"  ... and {len(lines) - limit} more")
        return "\n".join([self._counts(), *shown])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<GraphDiff: {self._counts() if self else self.to_text()}>"

    def _repr_html_(self) -> str:
        head, *lines = self.to_text().splitlines()
        rows = (
            f'<span style="color: {_COLORS.get(line[:1], "inherit")}">{html.escape(line)}</span>'
            for line in lines
        )
        return f"<p>{html.escape(head)}</p><pre>{chr(10).join(rows)}</pre>"

    def _counts(self) -> str:
        nodes = len({change.b for change in self.changed})
        start = f"{self.direction}: " if any(self.titles) else ""
        return (
            f"{start}{len(self.a.nodes)} -> {len(self.b.nodes)} nodes: {len(self.added)} added, "
            f"{len(self.removed)} removed, {nodes} changed; {len(self.a.edges)} -> "
            f"{len(self.b.edges)} edges: {len(self.added_edges)} added, "
            f"{len(self.removed_edges)} removed"
        )

    def union(self) -> Graph:
        """Both graphs in one, to draw: all of `b`, and what `a` had besides, in its place."""
        return self._union()[0]

    def marks(self) -> dict[int, Mark]:
        """For each node of `union()` that differs, how."""
        _, places = self._union()
        found: dict[int, Mark] = {places[0, node]: "removed" for node in self.removed}
        found |= {places[1, node]: "added" for node in self.added}
        found |= {places[1, change.b]: "changed" for change in self.changed}
        return dict(sorted(found.items()))

    def _lines(self) -> Iterator[str]:
        yield from (f"- {_describe(self.a.nodes[node])}" for node in self.removed)
        yield from (f"+ {_describe(self.b.nodes[node])}" for node in self.added)
        for each in self.changed:
            node = self.b.nodes[each.b]
            yield f"~ {_called(node)}: {each.what} {each.before} -> {each.after}"
        for sign, graph, edges, new in (
            ("-", self.a, self.removed_edges, set(self.removed)),
            ("+", self.b, self.added_edges, set(self.added)),
        ):
            for edge in edges:
                if edge.source not in new and edge.target not in new:
                    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
                    yield (
                        f"{sign} edge {_called(source)} -> {_called(target)}, input {edge.input_nr}"
                    )

    def _union(self) -> tuple[Graph, dict[tuple[int, int], int]]:
        """The union, and the id in it of each (side, id)."""
        to_b = dict(self.pairs)
        # A removed node stands right behind the last of its inputs, and so do those behind it.
        order: dict[tuple[int, int], tuple[int, int, int]] = {
            (1, node.id): (node.id, 0, 0) for node in self.b.nodes
        }
        inputs = self.a.inputs()
        for node in self.removed:
            behind = -1
            for edge in inputs[node]:
                source = (1, to_b[edge.source]) if edge.source in to_b else (0, edge.source)
                behind = max(behind, order[source][0])
            order[0, node] = (behind, 1, node)
        ranked = sorted(order, key=order.__getitem__)
        places = {each: place for place, each in enumerate(ranked)}
        sides = (self.a, self.b)
        nodes = tuple(
            sides[side].nodes[node]._replace(id=place) for (side, node), place in places.items()
        )
        edges = [
            e._replace(source=places[1, e.source], target=places[1, e.target]) for e in self.b.edges
        ]
        place = {i: places[1, j] for i, j in self.pairs} | {i: places[0, i] for i in self.removed}
        gone = set(self.removed)
        for e in self.removed_edges:
            moved = e._replace(source=place[e.source], target=place[e.target])
            # Where b runs the other way, the way it ran in a would close a circle.
            if gone & {e.source, e.target} and moved.source < moved.target:
                edges.append(moved)
        outputs = tuple((places[1, node], nr) for node, nr in self.b.outputs)
        return Graph(nodes, tuple(edges), outputs, step=self.b.step), places


def diff(
    a: GraphLike,
    b: GraphLike,
    *,
    gradient_tolerance: float = GRADIENT_TOLERANCE,
    time_tolerance: float = TIME_TOLERANCE,
    titles: tuple[str, str] = ("", ""),
) -> GraphDiff:
    """What changed from `a` to `b`, matched by structure, labels and modules, not by position.

    Args:
        gradient_tolerance: relative difference of a gradient's norm or largest value.
        time_tolerance: relative difference of a node's time: 1.0 is twice as long.
            Up to these two nothing changed; `math.inf` leaves gradients or times out.
        titles: what to call the two graphs in the text and below the picture.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> print(diff(trace((x * 2).sum()), trace((x * 2).relu().sum())))
    3 -> 4 nodes: 1 added, 0 removed, 0 changed; 2 -> 3 edges: 2 added, 1 removed
    + relu f32[3] cpu
    - edge mul -> sum, input 0
    """
    a, b = graph_of(a), graph_of(b)
    to_b = match(a, b)
    pairs = tuple(sorted(to_b.items()))
    found = set(to_b.values())
    edges_b = set(b.edges)
    kept = {
        edge: edge._replace(source=to_b[edge.source], target=to_b[edge.target])
        for edge in a.edges
        if edge.source in to_b and edge.target in to_b
    }
    known = {each for edge, each in kept.items() if each in edges_b}
    changes = [
        change
        for i, j in pairs
        for change in _changes(a.nodes[i], b.nodes[j], gradient_tolerance, time_tolerance)
    ]
    return GraphDiff(
        a,
        b,
        pairs,
        added=tuple(node.id for node in b.nodes if node.id not in found),
        removed=tuple(node.id for node in a.nodes if node.id not in to_b),
        changed=tuple(changes),
        added_edges=tuple(edge for edge in b.edges if edge not in known),
        removed_edges=tuple(edge for edge in a.edges if kept.get(edge) not in edges_b),
        titles=titles,
    )


def _changes(
    a: Node, b: Node, gradient_tolerance: float, time_tolerance: float
) -> Iterator[Change]:
    many = len(a.outputs) > 1 or len(b.outputs) > 1
    for nr in range(max(len(a.outputs), len(b.outputs))):
        left = a.outputs[nr] if nr < len(a.outputs) else None
        right = b.outputs[nr] if nr < len(b.outputs) else None
        where = f"output {nr} " if many else ""
        if left is None or right is None:
            if left is not right:
                yield Change(
                    a.id, b.id, "shape", f"{where}{left or 'undefined'}", str(right or "undefined")
                )
            continue
        if left.shape != right.shape:
            yield Change(a.id, b.id, "shape", f"{where}{list(left.shape)}", str(list(right.shape)))
        if left.dtype != right.dtype:
            yield Change(a.id, b.id, "dtype", f"{where}{left.dtype}", right.dtype)
        if left.device != right.device:
            yield Change(a.id, b.id, "device", f"{where}{left.device}", right.device)
    yield from _attributes(a, b)
    # Only what both have is compared: a graph that was traced has no gradients to differ in.
    for before, after in zip(a.grad_outputs, b.grad_outputs, strict=False):
        if before is not None and after is not None and _differs(before, after, gradient_tolerance):
            yield Change(a.id, b.id, "gradient", _gradient(before), _gradient(after))
    if a.seconds is not None and b.seconds is not None:
        longest = max(a.seconds, b.seconds)
        if longest > _SHORTEST and longest > (1 + time_tolerance) * min(a.seconds, b.seconds):
            yield Change(
                a.id, b.id, "time", f"{a.seconds * 1e3:.3g} ms", f"{b.seconds * 1e3:.3g} ms"
            )
    for name, column in declared(Node).items():
        if column.compared:
            values = getattr(a, name), getattr(b, name)
            if all(map(recorded, values)) and values[0] != values[1]:
                yield Change(a.id, b.id, column.title, *map(column.words, values))


def _attributes(a: Node, b: Node) -> Iterator[Change]:
    """The attributes that both nodes have, where their shapes are the same: sizes follow those."""
    if [meta and meta.shape for meta in a.outputs] != [meta and meta.shape for meta in b.outputs]:
        return
    after = dict(text.partition("=")[::2] for text in b.attributes)
    for name, value in (text.partition("=")[::2] for text in a.attributes):
        if after.get(name, value) != value:
            yield Change(a.id, b.id, "attribute", f"{name}={value}", f"{name}={after[name]}")


def _differs(a: GradientStats, b: GradientStats, tolerance: float) -> bool:
    if math.isinf(tolerance):
        return False
    if (a.nan, a.inf) != (b.nan, b.inf):
        return True
    scale = tolerance * max(a.norm, b.norm)
    return abs(a.norm - b.norm) > scale or abs(a.max_abs - b.max_abs) > scale


def _gradient(stats: GradientStats) -> str:
    bad = f" with {stats.nan} NaN and {stats.inf} Inf" if stats.nonfinite else ""
    return f"norm {stats.norm:.4g}, max {stats.max_abs:.4g}{bad}"


def _called(node: Node) -> str:
    inside = f" in {node.scope}" if node.scope else ""
    return f"{node.label or node.title}{inside}"


def _describe(node: Node) -> str:
    label = f"{node.label}: " if node.label else ""
    inside = f" in {node.scope}" if node.scope else ""
    metas = ", ".join(str(meta or "undefined") for meta in node.outputs)
    return f"{label}{node.title}{inside} {metas}".rstrip()
