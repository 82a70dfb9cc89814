"""Write edges and cuts as DOT, with the lengths and the order that Graphviz keeps.

Instead of a long edge, a stub is drawn at each end: a short dashed edge to a text that names the
other end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from ...graph.immutable import NamedTuple
from .. import cuts, wording
from ..drawing.connect import ranks_with_cycles
from ..drawing.drawing import Drawing
from ..drawing.values import End, Leaf, MergedEdge, Open
from ..style import palette
from . import layout
from .layout import dot_id
from .nodes import end_id

MAX_CUTS: Final = 40  # more would cover the drawing and slow down the layout


class CutLines(NamedTuple):
    """The DOT lines for the cuts of a drawing."""

    # (key of the drawn side, DOT node with the cut's text), for cuts with only one drawn side
    stubs: list[tuple[int, str]]
    edges: list[str]  # DOT edges, drawn as dashed lines
    links: set[tuple[End, End]]  # (source, target) of `edges` that lead to the box of a call
    hidden: int  # number of cuts that are not drawn


def cut_lines(drawing: Drawing) -> CutLines:
    """Return a dashed line for each cut; a text replaces a side that is not drawn."""
    colors = palette(drawing.options["theme"])
    found, hidden = cuts.cut_lines(drawing, MAX_CUTS)
    lines = CutLines([], [], set(), hidden)
    for number, cut in enumerate(found):
        color = colors[cut.color]
        line = f'style=dashed arrowhead=none color="{color}"'
        if cut.source is not None and cut.target is not None:
            label = f'fontcolor="{color}" label=<{_label(cut.text)}>'
            ends = f"{end_id(cut.source)} -> {end_id(cut.call or cut.target)}"
            lines.edges.append(f"\t{ends} [{line} {label}]")
            if cut.call is not None:
                lines.links.add((cut.source, cut.call))
            continue
        here, stub = dot_id(cut.key), f"cut_{number}"
        text = "<BR/>".join(layout.small(layout.escape(part), color) for part in cut.text)
        # The text has the rank of the drawn side. In another rank, it would push nodes aside.
        lines.stubs.append(
            (cut.key, f'\t{{rank=same {here} {stub} [label=<{text}> shape=plain style=""]}}')
        )
        ends = f"{stub} -> {here}" if cut.source is None else f"{here} -> {stub}"
        lines.edges.append(f"\t{ends} [{line} minlen=2]")
    return lines


def _label(text: tuple[str, ...]) -> str:
    return "".join(f' {layout.escape(line)}<BR ALIGN="LEFT"/>' for line in text)


def min_lengths(drawing: Drawing) -> dict[tuple[int, int], int]:
    """Return (source, target) -> minimum number of ranks, for edges that need more than one."""
    if drawing.groups is None or drawing.inner.inside:
        # If parameters are written inside operations, few modules begin with operations on
        # parameters.
        return {}
    home = drawing.tree.homes
    inputs: dict[int, list[int]] = {}
    for source, target in drawing.ends:
        inputs.setdefault(target, []).append(source)
    # Node that depends only on nodes of its own module -> number of ranks from the first of these.
    own: dict[int, int] = {}
    for i in drawing.nodes:
        around = home.get(i)
        before = inputs.get(i, [])
        if around is not None and all(s in own and home.get(s) == around for s in before):
            own[i] = 1 + max((own[s] for s in before), default=0)
    found = {}
    for target, sources in inputs.items():
        around = home.get(target)
        room = max((own[s] for s in sources if s in own and home.get(s) == around), default=0)
        if room:
            found.update(
                {(source, target): room + 1 for source in sources if home.get(source) != around}
            )
    return found


_MAX_SIBLINGS = 8  # the order of more modules is left to Graphviz
_INVISIBLE = "[style=invis]"


def sibling_lines(drawing: Drawing) -> list[str]:
    """Return the invisible points and edges above modules of one class that run side by side.

    These lines must be written first, because Graphviz starts from the order in the text.
    """
    rows = _rows(drawing)
    if not rows:
        return []
    rank = ranks_with_cycles(drawing)
    # A module that reads a detached result is below the module of the result.
    cut = {drawing.key(node) for each in drawing.graph.cuts for node in each.after}
    lines = []
    for row in rows:
        firsts = [keys[0] for keys in row]
        spans = {(rank[keys[0]], max(rank[key] for key in keys)) for keys in row}
        if len(spans) > 1 or not cut.isdisjoint(firsts):
            continue
        points = [f"above_{dot_id(key)}" for key in firsts]
        form = 'shape=point width=0.01 label="" style=invis'
        lines.append(f"\t{{rank=same {' '.join(f'{point} [{form}]' for point in points)}}}")
        lines += [f"\t{one} -> {other} {_INVISIBLE}" for one, other in pairwise(points)]
        below = zip(points, firsts, strict=True)
        lines += [f"\t{point} -> {dot_id(key)} {_INVISIBLE}" for point, key in below]
    return lines


def _rows(drawing: Drawing) -> list[list[list[int]]]:
    """Return, for modules of the same class and size, the keys inside each, in execution order."""
    if drawing.groups is None:
        return []
    groups = drawing.groups.groups
    inside: dict[int, list[int]] = {}  # framed group -> keys of the elements inside
    for key, path in drawing.tree.paths.items():
        for number in path:
            inside.setdefault(number, []).append(key)
    rows: dict[tuple[int | None, str, int], list[list[int]]] = {}
    for part, _, home in drawing.tree.parts:
        if isinstance(part, Leaf) or part.group is None or groups[part.group].kind != "module":
            continue
        keys = inside.get(part.group, []) if isinstance(part, Open) else [~part.group]
        if keys:
            one = groups[part.group]  # not `like`, because replicas are on different devices
            shared = home, one.module_class, one.span[1] - one.span[0]
            rows.setdefault(shared, []).append(sorted(keys, key=drawing.place))
    found = [sorted(row, key=lambda keys: drawing.place(keys[0])) for row in rows.values()]
    return [row for row in found if 1 < len(row) <= _MAX_SIBLINGS]


def edge_lines(drawing: Drawing) -> list[str]:
    """Return the DOT lines of the drawn edges, and of the dashed edges between nodes and stubs."""
    nodes = drawing.graph.nodes
    several = {i for i in drawing.nodes if len(nodes[i].outputs) > 1}
    long = min_lengths(drawing)
    result = [
        f"\t{edge.source} -> {edge.target}"
        if edge.source not in several and (not long or (edge.source, edge.target) not in long)
        else _edge_with_attributes(drawing, MergedEdge(edge.source, edge.target, edge), long)
        for edge in drawing.edges
    ]
    result += [_edge_with_attributes(drawing, line, long) for line in drawing.merged_edges]
    stub = "style=dashed arrowsize=0.5"
    for key in drawing.named_sources:
        here, there = f"from_{dot_id(key)}", dot_id(key)
        both = key in drawing.named_targets
        ends = f"{here} -> {there} [{stub}]" if both else f"{there} -> {here} [{stub} dir=back]"
        result.append(f"\t{ends}")
    result += [f"\t{dot_id(key)} -> to_{dot_id(key)} [{stub}]" for key in drawing.named_targets]
    return result


def stacking_lines(drawing: Drawing) -> list[str]:
    """Return invisible edges that arrange the backward passes of a wide graph vertically."""
    if not drawing.segments_stacked:
        return []
    parts: dict[int, list[int]] = {}
    for key, path in drawing.tree.paths.items():
        if path:
            parts.setdefault(path[0], []).append(key)
    rows = [sorted(parts[number], key=drawing.place) for number in sorted(parts)]
    if drawing.options["direction"] == "BT":
        rows.reverse()
    sources = {source for source, _ in drawing.ends}
    targets = {target for _, target in drawing.ends}
    lines = []
    for above, below in pairwise(rows):
        last = [key for key in above if key not in sources]
        first = [key for key in below if key not in targets]
        ends = [(a, b) for a in last for b in first]
        lines += [f"\t{dot_id(a)} -> {dot_id(b)} [style=invis minlen=2]" for a, b in ends]
    return lines


def _edge_with_attributes(
    drawing: Drawing, line: MergedEdge, long: dict[tuple[int, int], int]
) -> str:
    """Return the DOT line of an edge with a label, a minimum length in ranks, or both."""
    ends = f"\t{dot_id(line.source)} -> {dot_id(line.target)}"
    span = long.get((line.source, line.target))
    length = "" if span is None else f"minlen={span}"
    label = wording.edge_label(drawing, line)
    if label is None:
        return f"{ends} [{length}]"
    beside = layout.quote(f" {label} ")  # the spaces separate the label from the edge
    return f"{ends} [label={beside} {length}]".replace(" ]", "]")


def stub_lines(drawing: Drawing) -> Iterator[tuple[int, str]]:
    """Yield (key of an element, DOT node) for each stub.

    A stub is a text at the element that names the other ends of its undrawn edges.
    """
    muted = palette(drawing.options["theme"])["muted"]
    for arrow, named in (("from", drawing.named_sources), ("to", drawing.named_targets)):
        for key, others in named.items():
            called = f"{arrow} {wording.stub_text(drawing, others)}"
            text = layout.small(layout.escape(called), muted)
            stub = f'{arrow}_{dot_id(key)} [label=<{text}> shape=plain style=""]'
            # The stub has the rank of its node. In another rank, it would push a module aside.
            both = key in drawing.named_sources and key in drawing.named_targets
            yield key, f"\t{stub}" if both else f"\t{{rank=same {dot_id(key)} {stub}}}"
