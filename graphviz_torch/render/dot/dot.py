"""Write a graph as DOT text: `to_dot`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...graph import Graph, GraphLike
from ...graph.gc import with_gc_disabled
from ...graph.text import Text
from .. import picture_notes
from ..drawing.steps import draw
from ..options import Direction, DrawingOptions, drawing_options
from ..resolve import graph_and_marks
from ..style import NODE_SHAPES, Theme, palette
from .clusters import cluster_lines
from .edges import cut_lines, edge_lines, sibling_lines, stacking_lines, stub_lines
from .legend import legend
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
        notes = [*picture_notes.notes(drawing, cuts.hidden), *filter(None, [note])]
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
