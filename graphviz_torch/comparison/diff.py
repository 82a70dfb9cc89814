"""Compare two graphs: list the nodes and edges that were added, removed or changed.

A node is changed if one of these differs: the shape, dtype or device of an output, an attribute
that does not follow from shapes, or the gradient of an output. Times are compared only if a
tolerance is given. Labels, modules and source lines help to match nodes, but they may differ in an
unchanged node.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Literal

from ..graph import Edge, Graph, GraphLike, Node, graph_of
from ..graph.immutable import immutable
from ..graph.terminal import cut, line_width, option
from ..graph.text import first_items, printable
from ..graph.units import count_text
from .changes import (
    GRADIENT_TOLERANCE,
    Change,
    CollectiveChange,
    ModuleChange,
    changes,
    collective_changes,
    module_changes,
)
from .matching import match, renamed_modules

Mark = Literal["added", "removed", "changed"]

# Section of the text -> changed fields (`Change.what`) in this section. () means all fields that
# are not listed here.
_PARTS: dict[str, tuple[str, ...]] = {
    "shapes": ("shape", "dtype", "device", "attribute"),
    "values": (),
    "times": ("time",),
}
_NAMED = {what for kinds in _PARTS.values() for what in kinds}
_TIMES = "\N{MULTIPLICATION SIGN}"
_NUMBER = re.compile(r"(?<=[a-z_]\.)\d+(?=[.: ])", re.I)  # the number of a block in a module path
_COLORS = {"+": "#1a7f37", "-": "#c22a1e", "~": "#9a6700"}


@immutable(slots=False)
class GraphDiff:
    """The differences between two graphs; False in a boolean context if there are none.

    >>> import torch
    >>> from graphviz_torch import diff, trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> changed = diff(trace((x * 2).sum()), trace((x * 2).sin().sum()))
    >>> print(changed)
    3 -> 4 nodes: 1 added, 0 removed, 0 changed; 2 -> 3 edges: 2 added, 1 removed
    structure:
      + sin f32[3] cpu
      - edge mul -> sum, input 0
    """

    a: Graph
    b: Graph
    pairs: tuple[tuple[int, int], ...]  # (id in a, id in b) of matched nodes
    added: tuple[int, ...]  # ids in b of nodes without a match
    removed: tuple[int, ...]  # ids in a of nodes without a match
    changed: tuple[Change, ...]
    added_edges: tuple[Edge, ...]  # edges that only b has, with node ids of b
    removed_edges: tuple[Edge, ...]  # edges that only a has, with node ids of a
    titles: tuple[str, str] = ("", "")  # names of a and b
    changed_modules: tuple[ModuleChange, ...] = ()
    changed_collectives: tuple[CollectiveChange, ...] = ()

    @property
    def direction(self) -> str:
        """Title such as "From MLP to Detached layer", or "From the first graph to the second"."""
        before, after = self.titles
        return f"From {before or 'the first graph'} to {after or 'the second'}"

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """(path in a, path in b) of each renamed module. A new name alone is not a difference."""
        nodes = ((self.a.nodes[i].module, self.b.nodes[j].module) for i, j in self.pairs)
        return renamed_modules(nodes)

    def __bool__(self) -> bool:
        edges = self.added_edges or self.removed_edges
        changed = self.changed or self.changed_modules or self.changed_collectives
        return bool(self.added or self.removed or changed or edges)

    def to_text(self, *, limit: int = 40, wide: bool = False) -> str:
        """Return the differences as text, by section.

        Sections are structure, shapes, values, times, modules, collectives and names.

        A line starts with `+` (added), `-` (removed), `~` (changed) or `=` (renamed). Lines are cut
        to the width of the terminal, or to 80 characters without a terminal. Changes that differ
        only in the number of a block share one line, which ends with the number of changes.

        Args:
            limit: maximum number of lines in a section. One more line says how many were omitted.
            wide: True to show all lines in full length.
        """
        width = line_width(wide)
        shown = [printable(self._head())]
        for title, lines in self._parts():
            lines = list(lines) if wide else _merge_lines(lines)
            if lines:
                shown.append(f"{title}:")
            most = len(lines) if wide else limit
            lines = first_items(lines, most, f"... and {{:,}} more ({option('wide')} shows all)")
            shown += [f"  {printable(line)}" for line in lines]
        if width is None:
            return "\n".join(shown)
        head = wrap(shown[0], width, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join([*head, *(cut(line, width) for line in shown[1:])])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<GraphDiff: {printable(self._head())}>"

    def _repr_html_(self) -> str:
        lines = self.to_text(wide=True).splitlines()[1:]
        rows = (
            f'<span style="color: {_COLORS.get(line.strip()[:1], "inherit")}">'
            f"{html.escape(line)}</span>"
            for line in lines
        )
        return f"<p>{html.escape(printable(self._head()))}</p><pre>{chr(10).join(rows)}</pre>"

    def _head(self) -> str:
        if not self:
            but = " but for names:" if self.renamed else "."
            return f"No difference in {len(self.b.nodes)} nodes and {len(self.b.edges)} edges{but}"
        nodes = len({change.b for change in self.changed})
        modules = len({change.path for change in self.changed_modules})
        start = f"{self.direction}: " if any(self.titles) else ""
        return (
            f"{start}{len(self.a.nodes)} -> {len(self.b.nodes)} nodes: {len(self.added)} added, "
            f"{len(self.removed)} removed, {nodes} changed; {len(self.a.edges)} -> "
            f"{len(self.b.edges)} edges: {len(self.added_edges)} added, "
            f"{len(self.removed_edges)} removed"
            + (f"; {count_text(modules, 'module')} changed" if modules else "")
            + ("; collectives changed" if self.changed_collectives else "")
        )

    def union(self) -> Graph:
        """Return a graph to draw: `b`, and the nodes that were removed from `a`."""
        return self._union()[0]

    def marks(self) -> dict[int, Mark]:
        """Return id of a node in `union()` -> "added", "removed" or "changed"."""
        _, places = self._union()
        found: dict[int, Mark] = {places[0, node]: "removed" for node in self.removed}
        found |= {places[1, node]: "added" for node in self.added}
        found |= {places[1, change.b]: "changed" for change in self.changed}
        return dict(sorted(found.items()))

    def _parts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield the title and the lines of each section."""
        yield "structure", self._structure()
        for title, kinds in _PARTS.items():
            yield (
                title,
                [
                    f"~ {_node_text(self.b.nodes[each.b])}: {each.what} {_values(each)}"
                    for each in sorted(self.changed, key=lambda each: not self.b.nodes[each.b].leaf)
                    if (each.what in kinds if kinds else each.what not in _NAMED)
                ],
            )
        yield "modules", [f"~ {change}" for change in self.changed_modules]
        yield "collectives", [f"~ {change}" for change in self.changed_collectives]
        yield "names", [_renaming(old, new) for old, new in self.renamed]

    def _structure(self) -> Iterator[str]:
        yield from (f"- {_describe(self.a.nodes[node])}" for node in self.removed)
        yield from (f"+ {_describe(self.b.nodes[node])}" for node in self.added)
        for sign, graph, edges, new in (
            ("-", self.a, self.removed_edges, set(self.removed)),
            ("+", self.b, self.added_edges, set(self.added)),
        ):
            for edge in edges:
                if edge.source not in new and edge.target not in new:
                    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
                    names = f"{_node_text(source)} -> {_node_text(target)}"
                    yield f"{sign} edge {names}, input {edge.input_nr}"

    def _union(self) -> tuple[Graph, dict[tuple[int, int], int]]:
        """Return the union, and (0, id in a) or (1, id in b) -> id in the union."""
        to_b = dict(self.pairs)
        # A removed node is placed after all its inputs, including removed inputs.
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
            # An edge of a is left out if it leads backward in the order of b, because it could
            # close a cycle.
            if gone & {e.source, e.target} and moved.source < moved.target:
                edges.append(moved)
        outputs = tuple((places[1, node], nr) for node, nr in self.b.outputs)
        return Graph(nodes, tuple(edges), outputs, step=self.b.step), places


def diff(
    a: GraphLike,
    b: GraphLike,
    *,
    gradient_tolerance: float = GRADIENT_TOLERANCE,
    time_tolerance: float = math.inf,
    titles: tuple[str, str] = ("", ""),
) -> GraphDiff:
    """Match the nodes of two graphs by structure, labels and modules, and return the changes.

    Args:
        a, b: graphs, or recordings of one step.
        gradient_tolerance: relative difference up to which a gradient counts as unchanged, for its
            norm and its largest absolute value (default 1e-4). `math.inf` ignores gradients.
        time_tolerance: relative difference up to which a time counts as unchanged; 1.0 allows twice
            the time. By default, times are ignored, because they differ from run to run.
        titles: names of the two graphs in the text and below the picture.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> print(diff(trace((x * 2).sum()), trace((x * 2).relu().sum())))
    3 -> 4 nodes: 1 added, 0 removed, 0 changed; 2 -> 3 edges: 2 added, 1 removed
    structure:
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
    changed = [
        change
        for i, j in pairs
        for change in changes(a.nodes[i], b.nodes[j], gradient_tolerance, time_tolerance)
    ]
    renamed = renamed_modules((a.nodes[i].module, b.nodes[j].module) for i, j in pairs)
    return GraphDiff(
        a,
        b,
        pairs,
        added=tuple(node.id for node in b.nodes if node.id not in found),
        removed=tuple(node.id for node in a.nodes if node.id not in to_b),
        changed=tuple(changed),
        added_edges=tuple(edge for edge in b.edges if edge not in known),
        removed_edges=tuple(edge for edge in a.edges if kept.get(edge) not in edges_b),
        titles=titles,
        changed_modules=tuple(module_changes(a, b, pairs)),
        changed_collectives=tuple(collective_changes(a, b, renamed)),
    )


def _merge_lines(lines: Iterable[str]) -> list[str]:
    """Merge lines that differ only in the number of a block into one line with a count."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(_NUMBER.sub("*", line), []).append(line)
    return [
        each[0] if len(each) == 1 else f"{line}  {_TIMES} {len(each)}"
        for line, each in groups.items()
    ]


def _values(change: Change) -> str:
    """Return "before -> after" for a change; only the norms of gradients if they differ."""
    parts = [text.partition(", max ") for text in (change.before, change.after)]
    (before, _, rest), (after, _, _) = parts
    if rest and before != after and not any(" " in part[2] for part in parts):
        return f"{before} -> {after.removeprefix('norm ')}"
    return f"{change.before} -> {change.after}"


def _node_text(node: Node) -> str:
    inside = f" in {node.scope}" if node.scope and not node.label.startswith(node.scope) else ""
    return f"{node.label or node.title}{inside}"


def _renaming(old: str, new: str) -> str:
    if not old:
        return f"= all modules are now in {new}"
    return f"= {old} is now {new}" if new else f"= nodes of {old} are no longer in that module"


def _describe(node: Node) -> str:
    label = f"{node.label}: " if node.label else ""
    inside = f" in {node.scope}" if node.scope else ""
    metas = ", ".join(str(meta or "undefined") for meta in node.outputs)
    return f"{label}{node.title}{inside} {metas}".rstrip()
