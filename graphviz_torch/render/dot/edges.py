"""Write edges as DOT.

Instead of a long edge, a stub is drawn at each end: a short dashed edge to a text that names the
other end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .. import wording
from ..drawing.drawing import Drawing
from ..drawing.values import MergedEdge
from ..style import palette
from . import markup
from .edge_lengths import min_lengths
from .markup import dot_id


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
    beside = markup.quote(f" {label} ")  # the spaces separate the label from the edge
    return f"{ends} [label={beside} {length}]".replace(" ]", "]")


def stub_lines(drawing: Drawing) -> Iterator[tuple[int, str]]:
    """Yield (key of an element, DOT node) for each stub.

    A stub is a text at the element that names the other ends of its undrawn edges.
    """
    muted = palette(drawing.options["theme"])["muted"]
    for arrow, named in (("from", drawing.named_sources), ("to", drawing.named_targets)):
        for key, others in named.items():
            called = f"{arrow} {wording.stub_text(drawing, others)}"
            text = markup.small(markup.escape(called), muted)
            stub = f'{arrow}_{dot_id(key)} [label=<{text}> shape=plain style=""]'
            # The stub has the rank of its node. In another rank, it would push a module aside.
            both = key in drawing.named_sources and key in drawing.named_targets
            yield key, f"\t{stub}" if both else f"\t{{rank=same {dot_id(key)} {stub}}}"
