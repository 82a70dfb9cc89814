"""The graph as DOT text: what is visible, and how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from ...graph import Finding, Graph, GraphLike, TensorMeta, graph_of
from ...graph.gc import uncollected
from .. import labels
from ..drawing.contents import contents
from ..drawing.inline import Parameters
from ..drawing.level import level
from ..drawing.visible import Line, Visible, dot_id
from ..style import FORMS, Theme, palette
from . import markup
from .clusters import clustered
from .color import ColorBy, in_values, shade
from .connectors import Connectors
from .cuts import cut_lines
from .edge_lengths import lengths
from .failure import failed, failure_lines
from .legend import legend
from .marks import SIGNS, Mark, mark
from .nodes import Nodes

Direction = Literal["TB", "BT", "LR", "RL"]

_FONT = "DejaVu Sans,Verdana,sans-serif"
# From so many nodes on the search for good places is bounded: dot's own bounds suit small graphs.
_MANY = 600


def to_dot(
    graph: GraphLike,
    *,
    direction: Direction = "TB",
    theme: Theme = "light",
    color_by: ColorBy | None = None,
    parameters: Parameters | None = None,
    depth: int | None = None,
    module: str | None = None,
    fold: bool | None = None,
    findings: Iterable[Finding] = (),
    marks: Mapping[int, Mark] | None = None,
    explain: bool = True,
    limit: int | None = None,
    note: str = "",
) -> str:
    """The graph as DOT text.

    Args:
        direction: where data flows: "TB" is from top to bottom.
        theme: "light", "dark", or "auto" for an SVG that follows its reader's setting.
        color_by: fill nodes by "device", "dtype", "module", "trainable" (whether the module's own
            parameters require a gradient, or are frozen), "gradient" (norm), "time" (seconds in
            backward) or "saved" (bytes kept for backward) in place of what they are; or by a
            function that takes a Node and returns a number, or None. Time and bytes are those of a
            node with all that is written inside it, or of a whole closed group; of gradients, and
            of what a function returns, a group has its largest.
        parameters: "fold" writes parameters inside the operation that uses them, with what only
            hands one on ("weight.t"); "nodes" gives each a node; None folds them where modules were
            recorded or there are many.
        depth: levels of modules to open; None opens what there is room for.
        module: draw the inside of this module only.
        fold: draw blocks of the same structure that follow each other as one; None does so where
            there are more than 100 nodes to draw.
        findings: what to mark; their messages stand below the picture.
        marks: node id -> "added", "removed" or "changed".
        explain: say below the picture what forms and colours mean.
        limit: with more things to show than this, modules (without them: runs and loops) are drawn
            closed; None opens as many as fit a page.
        note: a line to add below the picture.

    Raises:
        ValueError: for an option that is not among those named or too small, or a module that is
            not in the graph.

    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> node = Node(0, "AccumulateGrad", (TensorMeta((3,), "float32", "cpu"),), "x", leaf="tensor")
    >>> "<B>x</B>" in to_dot(Graph((node,)))
    True
    """
    graph = graph_of(graph)
    _check("direction", direction, ("TB", "BT", "LR", "RL"))
    _check("theme", theme, ("light", "dark", "auto"))
    _check("parameters", parameters, (None, "fold", "nodes"))
    if depth is not None and depth < 0:
        raise ValueError(f"depth={depth} is no number of levels: give 0 or more, or None.")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves nothing to show: give 1 or more.")
    for difference in (marks or {}).values():
        _check("marks: mark", difference, tuple(SIGNS))
    if fold is None and depth is not None and in_values(color_by):
        fold = False  # each closed group has a value of its own to show
    told = list(findings)
    kept = [*failed(graph, told), *told]
    with uncollected():
        drawn, parts = level(
            graph,
            parameters=parameters,
            depth=depth,
            module=module,
            fold=fold,
            limit=limit,
            findings=kept,
            page=direction in ("TB", "BT"),
        )
        colors = palette(theme)
        between = Connectors(drawn, parts, colors)
        inside = contents(graph, drawn)
        shading = shade(graph, drawn, inside, color_by, theme)
        marked = mark(graph, drawn, colors, kept, marks or {})
        nodes = Nodes(graph, drawn, inside, theme, shading, marked)
        lines = nodes.lines()
        for key, stub in _stubs(graph, drawn, colors):
            lines[key] += f"\n{stub}"  # in the cluster of its node
        for key, circles in between.nodes().items():
            lines[key] += "".join(f"\n{circle}" for circle in circles)
        cuts, uncut = cut_lines(graph, drawn, colors, kept)
        body = clustered(graph, drawn, inside, nodes.transfers, lines, theme)
        size = len(drawn.nodes) + len(drawn.boxes)
        extra = " nslimit=0.1 nslimit1=0.1 mclimit=0.5" if size > _MANY else ""
        if explain:
            notes = [text for text in (_left_out(graph, drawn, uncut), note) if text]
            folded = bool(drawn.inner.inside)
            below = legend(frozenset(nodes.roles), folded, theme, shading, kept, notes)
            extra += f" label=<{below}> labelloc=b labeljust=l" if below else ""
        head = _head(direction, theme).format(extra)
        edges = [*_edges(graph, drawn, between), *between.rows()]
        end = failure_lines(graph, drawn, colors)
        return "\n".join([head, *body, *edges, *cuts, *end, "}", ""])


def _left_out(graph: Graph, drawn: Visible, cuts: int) -> str:
    """What a drawing does not show, such as some cuts, and why an empty one is empty."""
    if not graph.nodes:
        return "this graph has no nodes"
    parts = []
    if drawn.boxes:
        parts.append("closed groups hold the rest (depth=, module= open them)")
    if drawn.times and max(drawn.times.values()) > 1:
        parts.append("of blocks alike only the first is drawn (fold=False draws each)")
    if cuts:
        parts.append(f"{cuts:,} {'cut is' if cuts == 1 else 'cuts are'} not drawn")
    return f"{len(graph.nodes):,} nodes: {'; '.join(parts)}" if parts else ""


def _check(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value!r} is unknown. Known are {', '.join(map(repr, known))}.")


@lru_cache
def _head(direction: Direction, theme: Theme) -> str:
    """What stands before the nodes; "{}" is for attributes of this drawing."""
    form, colors = FORMS["operation"], palette(theme)
    font = f'fontname="{_FONT}"'
    return (
        "digraph {{\n"
        f'\tgraph [rankdir={direction} newrank=true bgcolor="{colors["background"]}" {font}'
        f' fontsize=10 fontcolor="{colors["muted"]}" nodesep=0.22 ranksep=0.34 pad=0.2{{}}]\n'
        f'\tnode [shape={form.shape} style="{form.style}" fillcolor="{colors["operation"]}"'
        f' color="{colors["operation_line"]}" {font} fontsize=12 fontcolor="{colors["ink"]}"'
        f' margin="{form.margin}" height=0.3 width=0.6]\n'
        f'\tedge [color="{colors["edge"]}" arrowsize=0.7 {font} fontsize=9'
        f' fontcolor="{colors["muted"]}"]'
    )


def _edges(graph: Graph, drawn: Visible, between: Connectors) -> list[str]:
    """The lines of the edges, and of those between nodes and their stubs."""
    several = {node.id for node in graph.nodes if len(node.outputs) > 1}
    # Where parameters are written inside, hardly a module starts on its own.
    long = {} if drawn.groups is None or drawn.inner.inside else lengths(drawn)
    result = [
        f"\t{edge.source} -> {edge.target}"
        if edge.source not in several and (not long or edge[:2] not in long)
        else _attributed(graph, Line(edge.source, edge.target, edge), several, long)
        for edge in drawn.edges
    ]
    result += [_attributed(graph, line, several, long) for line in drawn.lines]
    if between.numbers:
        left: set[int] = set()
        for i, (source, target) in enumerate(drawn.ends()):
            names = between.between(source, target)
            if names:
                label = "".join(result[i].partition(" [")[1:])
                result[i] = f"\t{dot_id(source)} -> {names[0]}" if source not in left else ""
                result.append(f"\t{names[1]} -> {dot_id(target)}{label}")
                left.add(source)
        result = [line for line in dict.fromkeys(result) if line]
    stub = "style=dashed arrowsize=0.5"
    for key in drawn.before:
        here, there = f"from_{dot_id(key)}", dot_id(key)
        both = key in drawn.behind
        ends = f"{here} -> {there} [{stub}]" if both else f"{there} -> {here} [{stub} dir=back]"
        result.append(f"\t{ends}")
    result += [f"\t{dot_id(key)} -> to_{dot_id(key)} [{stub}]" for key in drawn.behind]
    return result


def _attributed(
    graph: Graph, line: Line, several: set[int], long: dict[tuple[int, int], int]
) -> str:
    """An edge that spans more ranks, or that says what passes where neither of its ends tells."""
    source, target, edge, times, alike = line
    ends = f"\t{dot_id(source)} -> {dot_id(target)}"
    length = f"minlen={long[source, target]}" if (source, target) in long else ""
    if source >= 0 and target >= 0 and times == 1 and source not in several:
        return f"{ends} [{length}]"
    outputs = graph.nodes[edge.source].outputs
    label = _passing(outputs, edge.output_nr, source in several, times, alike)
    return f"{ends} [label={label} {length}]".replace(" ]", "]")


@lru_cache(maxsize=4096)
def _passing(
    outputs: tuple[TensorMeta | None, ...], output_nr: int, several: bool, times: int, alike: bool
) -> str:
    """The label of an edge: which output passes, its shape, and how many tensors like it."""
    if not alike:
        return markup.quote(f"{times} tensors")
    meta = outputs[output_nr] if output_nr < len(outputs) else None
    parts = [f"[{output_nr}]"] if several and times == 1 else []
    # A node with outputs of one shape says it itself.
    if meta is not None and not (parts and len({*outputs}) == 1):
        parts.append(labels.shape(meta))
    parts += [f"{labels.TIMES}{times}"] if times > 1 else []
    return markup.quote(" ".join(parts))


def _stubs(graph: Graph, drawn: Visible, colors: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The other ends, by name, of edges that are not drawn: the key at this end, and a node."""
    for arrow, named in (("from", drawn.before), ("to", drawn.behind)):
        for key, others in named.items():
            names = [_called(graph, drawn, other) for other in others[:3]]
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            text = markup.small(markup.escape(f"{arrow} {', '.join(names)}{more}"), colors["muted"])
            stub = f'{arrow}_{dot_id(key)} [label=<{text}> shape=plain style=""]'
            # Beside its node: above or below, it would push the next module out of the column.
            both = key in drawn.before and key in drawn.behind
            yield key, f"\t{stub}" if both else f"\t{{rank=same {dot_id(key)} {stub}}}"


def _called(graph: Graph, drawn: Visible, key: int) -> str:
    """What to call the far end of an edge: as the drawing itself calls it."""
    if key < 0:
        return drawn.title(~key)
    node = graph.nodes[key]
    return f"{node.label or node.title} #{key}"
