"""Lay out the DOT text on stdin with the Graphviz of pygraphviz: `python engine.py FORMAT`.

layout.py runs this file as a separate program, which imports no other file of this package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

if __name__ == "__main__":
    # Remove this file's folder from the path, because its modules would shadow installed ones.
    sys.path.pop(0)

from pygraphviz import AGraph, graphviz  # type: ignore[import-untyped]

# Formats for which this program draws the titles of clusters after the edges, so that no edge
# crosses a title. For SVG, layout.py does this.
_LAYERED_FORMATS = ("png", "jpg", "pdf", "ps")


def main() -> None:
    """Read DOT text from stdin, and write the drawing to stdout."""
    format = sys.argv[1]
    # AGraph.draw frees the layout before it returns the drawing, which can crash the process: every
    # second drawing of a ResNet-50 did, with pygraphviz 2.0.4. Therefore nothing is freed before
    # the process exits.
    graph = AGraph(string=sys.stdin.buffer.read().decode())
    context = _layout(graph, b"dot")
    if format in _LAYERED_FORMATS and next(_frames(graph), None):
        placed = AGraph(string=_render(context, graph, b"dot").decode())
        for edge in placed.edges_iter():
            if not edge.attr["pos"]:  # the first layout removed the style of invisible edges
                edge.attr["style"] = "invis"
        _titles_above_edges(placed)
        drawn = _render(_layout(placed, b"nop2"), placed, format.encode())
    else:
        drawn = _render(context, graph, format.encode())
    sys.stdout.buffer.write(drawn)
    sys.stdout.flush()
    os._exit(0)


def _layout(graph: AGraph, engine: bytes) -> object:
    context = graphviz.gvContextWithBuiltins()
    if graphviz.gvLayout(context, graph.handle, engine):
        sys.exit("the layout failed")
    return context


def _render(context: object, graph: AGraph, format: bytes) -> bytes:
    error, drawn = graphviz.gvRenderData(context, graph.handle, format)
    if error:
        sys.exit("the drawing failed")
    assert isinstance(drawn, bytes)
    return drawn


def _frames(graph: AGraph) -> Iterator[AGraph]:
    """Yield the clusters that have a title, outer clusters first."""
    for part in graph.subgraphs():
        if (part.name or "").startswith("cluster") and _frame_attribute(part, "label").startswith(
            "<B>"
        ):
            yield part
        yield from _frames(part)


def _titles_above_edges(placed: AGraph) -> None:
    """Replace the title of each cluster with a node, so that no edge crosses the title.

    Graphviz draws clusters and their titles before edges, and nodes after edges.
    """
    for number, frame in enumerate([*_frames(placed)]):
        placed.add_node(
            f"title {number}",
            label=f"<{_frame_attribute(frame, 'label')}>",
            pos=_frame_attribute(frame, "lp"),
            width=_frame_attribute(frame, "lwidth"),
            height=_frame_attribute(frame, "lheight"),
            fixedsize="true",
            margin="0",
            shape="box",
            style="filled",
            fillcolor=_frame_attribute(frame, "fillcolor"),
            color=_frame_attribute(frame, "fillcolor"),
            fontsize=_frame_attribute(frame, "fontsize"),
            fontcolor=_frame_attribute(frame, "fontcolor"),
        )
        frame.graph_attr["label"] = ""


def _frame_attribute(frame: AGraph, name: str) -> str:
    """Return an attribute of a cluster, its own or inherited; "" if the attribute is not set."""
    try:
        return frame.graph_attr[name] or ""
    except KeyError:
        return ""


if __name__ == "__main__":
    main()
