"""Write a graph as DOT text: `to_dot`.

Each device has a cluster, which contains the clusters of open modules.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...graph import Graph, GraphLike
from ...graph.gc import with_gc_disabled
from ...graph.text import Text
from .. import group_wording, labels, wording
from ..drawing.drawing import Drawing
from ..drawing.steps import draw
from ..options import Direction, DrawingOptions, drawing_options
from ..resolve import graph_and_marks
from ..style import GROUNDS, NODE_SHAPES, Theme, category, palette, pick
from . import layout
from .edges import cut_lines, edge_lines, sibling_lines, stacking_lines, stub_lines
from .layout import dot_id
from .legend import legend, picture_notes
from .nodes import Nodes, data_lines, failure_lines

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FONT = "DejaVu Sans,Verdana,sans-serif"
# In a drawing with more nodes, `dot` runs fewer iterations, so that the layout ends in time.
_MIN_NODES_BOUNDED = 600
# `dot` narrows a drawing to this width in inches, if the boxes permit, and scales a wider drawing.
_PAGE = ' ratio=compress size="10.5,1000"'


@drawing_options
def to_dot(graph: GraphLike, *, note: str = "", **options: Unpack[DrawingOptions]) -> Text:
    """Return the graph as DOT text.

    Args:
        graph: a graph, a tensor, or a recording, as in `draw_graph`.
        note: a line to add below the picture.
        options: those of `DrawingOptions`.

    Raises:
        TypeError: if `graph` is none of these, or for an unknown option.
        ValueError: for an invalid value of an option, such as a `module` that the graph does not
            have.

    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> node = Node(0, "AccumulateGrad", (TensorMeta((3,), "float32", "cpu"),), "x", leaf="tensor")
    >>> "<B>x</B>" in to_dot(Graph((node,)))
    True
    """
    shown, findings = graph_and_marks(graph, findings=options.get("findings", "auto"))
    return Text(_write(shown, {**options, "findings": findings}, note))


@with_gc_disabled
def _write(graph: Graph, options: Any, note: str) -> str:
    drawing = draw(graph, options)
    nodes = Nodes(drawing)
    lines = nodes.lines()
    cuts = cut_lines(drawing)
    for key, stub in (*stub_lines(drawing), *cuts.stubs):
        lines[key] += f"\n{stub}"  # written with its node, to be in the same cluster
    body = [*sibling_lines(drawing), *cluster_lines(drawing, nodes.copies, lines)]
    body += nodes.between_ranks()
    edges = [*edge_lines(drawing), *stacking_lines(drawing)]
    size = len(drawing.nodes) + len(drawing.boxes)
    extra = _PAGE if drawing.must_fit_page else ""
    extra += " nslimit=0.1 nslimit1=0.1 mclimit=0.5" if size > _MIN_NODES_BOUNDED else ""
    if drawing.options["explain"]:
        notes = [*picture_notes(drawing, cuts.hidden), *filter(None, [note])]
        symbols = {
            "cut": cuts.edges,
            "untracked": any(not stub.is_data for stub in drawing.stubs.stubs),
            "many": drawing.inner.many and nodes.inner,
        }
        marks = frozenset(symbol for symbol, there in symbols.items() if there)
        below = legend(drawing, frozenset(nodes.roles), marks, notes, inner=bool(nodes.inner))
        extra += f" label=<{below}> labelloc=b labeljust=l" if below else ""
    head = _head(drawing.options["direction"], drawing.options["theme"]).format(extra)
    return "\n".join(
        [
            head,
            *body,
            *edges,
            *data_lines(drawing, cuts.links),
            *cuts.edges,
            *failure_lines(drawing),
            "}",
            "",
        ]
    )


@lru_cache
def _head(direction: Direction, theme: Theme) -> str:
    """Return the DOT text before the nodes, with "{}" as a placeholder for graph attributes."""
    form, colors = NODE_SHAPES["operation"], palette(theme)
    font = f'fontname="{_FONT}"'
    return (
        "digraph {{\n"
        f'\tgraph [rankdir={direction} newrank=true bgcolor="{colors["background"]}" {font}'
        f' fontsize=10 fontcolor="{colors["muted"]}" nodesep=0.22 ranksep=0.26 pad=0.2{{}}]\n'
        f'\tnode [shape={form.shape} style="{form.style}" fillcolor="{colors["operation"]}"'
        f' color="{colors["operation_line"]}" {font} fontsize=12 fontcolor="{colors["ink"]}"'
        f' margin="{form.margin}" height=0.3 width=0.6]\n'
        f'\tedge [color="{colors["edge"]}" arrowsize=0.7 {font} fontsize=9'
        f' fontcolor="{colors["muted"]}"]'
    )


# A connected part of the drawing on one device: (device, key of the part's first element).
_Region = tuple[str, int]
# Tree of clusters: group id or region -> the clusters and DOT lines inside; a DOT line -> None.
_Tree = dict[int | str | _Region, "_Tree | None"]


def cluster_lines(drawing: Drawing, copies: Collection[int], lines: dict[int, str]) -> list[str]:
    """Return the DOT lines of the nodes, nested in clusters.

    Args:
        drawing: the drawing.
        copies: ids of the nodes that copy between devices. They are outside of the devices'
            clusters.
        lines: key of an element -> DOT line of the element.
    """
    regions = _regions(drawing, copies)
    if drawing.groups is None and not regions:
        return list(lines.values())
    top: _Tree = {}
    for key in sorted(lines, key=drawing.place):
        path: list[int | _Region] = [regions[key]] if key in regions else []
        level = top
        for entry in (*path, *drawing.tree.paths[key]):
            inner = level.setdefault(entry, {})
            assert inner is not None
            level = inner
        level[lines[key]] = None
    devices = category([device for device, _ in regions.values()])
    return _cluster_lines(drawing, top, "", devices, "\t")


def _regions(drawing: Drawing, copies: Collection[int]) -> dict[int, _Region]:
    """Return the region (see `_Region`) of each key; {} if everything is on one device."""
    nodes = drawing.graph.nodes
    device = {i: nodes[i].device for i in drawing.nodes if i not in copies and nodes[i].device}
    for number in drawing.boxes:
        devices = drawing.contents[number].devices
        if len(devices) == 1:
            device[~number] = devices[0]
    if len(set(device.values())) < 2:
        return {}
    near: dict[int, list[int]] = {key: [] for key in device}
    for source, target in drawing.ends:
        if device.get(source, "") == device.get(target):
            near[source].append(target)
            near[target].append(source)
    regions: dict[int, _Region] = {}
    for start in device:
        if start in regions:
            continue
        reached = [start]
        regions[start] = here = (device[start], start)
        for key in reached:
            fresh = [other for other in near[key] if other not in regions]
            regions.update(dict.fromkeys(fresh, here))
            reached += fresh
    return regions


def _cluster_lines(
    drawing: Drawing, level: _Tree, name: str, devices: dict[str, int], tab: str
) -> list[str]:
    theme = drawing.options["theme"]
    colors = palette(theme)
    result: list[str] = []
    for entry, inner in level.items():
        if inner is None:
            result.append(tab[1:] + str(entry))
            continue
        if isinstance(entry, tuple):
            device, start = entry
            here = f"{name}_d{dot_id(start)}"
            title, border, small, sent = device, colors["group_line"], [], []
            fill = pick(GROUNDS[devices[device]], theme)
        else:
            here = f"{name}_{entry}"
            title, border = drawing.title_with_class(int(entry)), colors["cluster_line"]
            small = group_wording.repeat_totals(drawing, int(entry))
            sent = wording.collective_lines(drawing, ~int(entry))
            fill = colors["cluster"]
        wrapped = labels.wrap_name(title, drawing.line_width)
        lines = [f"<B>{layout.escape(line)}</B>" for line in wrapped.split("\n")]
        # The rim around a title's text hides edges behind it. SPACE makes a line of the title
        # higher, so that the rim covers the whole line.
        for text in small:
            color = colors["collective_line" if text in sent else "muted"]
            lines.append(layout.small(layout.escape(text), color) + layout.SPACE)
        head = "".join(f'{line}<BR ALIGN="LEFT"/>' for line in lines) if lines[1:] else lines[0]
        result += [
            f"{tab}subgraph cluster{here} {{",
            f"{tab}\tgraph [label=<{head}> labelloc=t labeljust=l"
            f' style="rounded,filled" fillcolor="{fill}" color="{border}"]',
            *_cluster_lines(drawing, inner, here, devices, tab + "\t"),
            f"{tab}}}",
        ]
    return result
