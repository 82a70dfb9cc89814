"""The lines of a DOT text that make edges, and the stubs of those that are not drawn."""

from __future__ import annotations

from collections.abc import Iterator

from .. import wording
from ..drawing.drawing import Drawing, Line
from ..page.edge_lengths import lengths
from ..style import palette
from . import markup
from .connectors import Connectors
from .markup import dot_id

# An arrow up to the next column: it moves nothing, and its point stands at what goes on from there.
_UP = "constraint=false arrowhead=none weight=8"


def edge_lines(drawing: Drawing, between: Connectors) -> list[str]:
    """The lines of the edges, and of those between nodes and their stubs."""
    nodes = drawing.graph.nodes
    several = {i for i in drawing.nodes if len(nodes[i].outputs) > 1}
    long = lengths(drawing)
    result = [
        f"\t{edge.source} -> {edge.target}"
        if edge.source not in several and (not long or (edge.source, edge.target) not in long)
        else _attributed(drawing, Line(edge.source, edge.target, edge), long)
        for edge in drawing.edges
    ]
    result += [_attributed(drawing, line, long) for line in drawing.lines]
    if len(between.parts) > 1:
        for i, (source, target) in enumerate(drawing.ends):
            names = between.between(source, target)
            if names:
                label = "".join(result[i].partition(" [")[1:])
                up = f":n [{_UP}]" if names[0] == names[1] else ""
                result[i] = f"\t{dot_id(source)} -> {names[0]}{up}"
                result.append(f"\t{names[1]} -> {dot_id(target)}{label}")
        result = list(dict.fromkeys(result))
    stub = "style=dashed arrowsize=0.5"
    for key in drawing.before:
        here, there = f"from_{dot_id(key)}", dot_id(key)
        both = key in drawing.behind
        ends = f"{here} -> {there} [{stub}]" if both else f"{there} -> {here} [{stub} dir=back]"
        result.append(f"\t{ends}")
    result += [f"\t{dot_id(key)} -> to_{dot_id(key)} [{stub}]" for key in drawing.behind]
    return result


def _attributed(drawing: Drawing, line: Line, long: dict[tuple[int, int], int]) -> str:
    """An edge that spans more ranks, or that says what passes where neither of its ends tells."""
    ends = f"\t{dot_id(line.source)} -> {dot_id(line.target)}"
    span = long.get((line.source, line.target))
    length = "" if span is None else f"minlen={span}"
    label = wording.passing(drawing, line)
    if label is None:
        return f"{ends} [{length}]"
    beside = markup.quote(f" {label} ")  # the spaces keep it off its own line
    return f"{ends} [label={beside} {length}]".replace(" ]", "]")


def stub_lines(drawing: Drawing) -> Iterator[tuple[int, str]]:
    """The other ends, by name, of edges that are not drawn: the key at this end, and a node."""
    muted = palette(drawing.options["theme"])["muted"]
    for arrow, named in (("from", drawing.before), ("to", drawing.behind)):
        for key, others in named.items():
            called = f"{arrow} {wording.far_ends(drawing, others)}"
            text = markup.small(markup.escape(called), muted)
            stub = f'{arrow}_{dot_id(key)} [label=<{text}> shape=plain style=""]'
            # Beside its node: above or below, it would push the next module out of the column.
            both = key in drawing.before and key in drawing.behind
            yield key, f"\t{stub}" if both else f"\t{{rank=same {dot_id(key)} {stub}}}"
