"""Lays the DOT text on stdin out, with pygraphviz's own Graphviz: `python engine.py FORMAT`.

A program of its own, run by layout.py: it imports nothing of this package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

if __name__ == "__main__":
    # The first entry is the folder of this file: nothing there may pose as another's module.
    sys.path.pop(0)

from pygraphviz import AGraph, graphviz  # type: ignore[import-untyped]

_PAINTED = ("png", "jpg", "pdf", "ps")  # formats in which what comes last is on top for good


def main() -> None:
    """Write the drawing to stdout."""
    format = sys.argv[1]
    # AGraph.draw frees the layout before it hands the drawing over, and that can crash (pygraphviz
    # 2.0.4 did so on every second drawing of one ResNet-50); so nothing is freed, and the program
    # ends.
    graph = AGraph(string=sys.stdin.buffer.read().decode())
    context = _laid_out(graph, b"dot")
    if format in _PAINTED and next(_frames(graph), None):
        placed = AGraph(string=_rendered(context, graph, b"dot").decode())
        for edge in placed.edges_iter():
            if not edge.attr["pos"]:  # an invisible one, written a second time without its style
                edge.attr["style"] = "invis"
        _titles_above_edges(placed)
        drawn = _rendered(_laid_out(placed, b"nop2"), placed, format.encode())
    else:
        drawn = _rendered(context, graph, format.encode())
    sys.stdout.buffer.write(drawn)
    sys.stdout.flush()
    os._exit(0)


def _laid_out(graph: AGraph, engine: bytes) -> object:
    context = graphviz.gvContextWithBuiltins()
    if graphviz.gvLayout(context, graph.handle, engine):
        sys.exit("the layout failed")
    return context


def _rendered(context: object, graph: AGraph, format: bytes) -> bytes:
    error, drawn = graphviz.gvRenderData(context, graph.handle, format)
    if error:
        sys.exit("the drawing failed")
    assert isinstance(drawn, bytes)
    return drawn


def _frames(graph: AGraph) -> Iterator[AGraph]:
    """The clusters that have a title of ours, outer ones first."""
    for part in graph.subgraphs():
        if (part.name or "").startswith("cluster") and _of(part, "label").startswith("<B>"):
            yield part
        yield from _frames(part)


def _titles_above_edges(placed: AGraph) -> None:
    """Draw titles of frames last, on the frame's colour: no edge strikes them.

    Graphviz draws a cluster with its title before all edges. A node that is added at the title's
    place is drawn after them.
    """
    for number, frame in enumerate([*_frames(placed)]):
        placed.add_node(
            f"title {number}",
            label=f"<{_of(frame, 'label')}>",
            pos=_of(frame, "lp"),
            width=_of(frame, "lwidth"),
            height=_of(frame, "lheight"),
            fixedsize="true",
            margin="0",
            shape="box",
            style="filled",
            fillcolor=_of(frame, "fillcolor"),
            color=_of(frame, "fillcolor"),
            fontsize=_of(frame, "fontsize"),
            fontcolor=_of(frame, "fontcolor"),
        )
        frame.graph_attr["label"] = ""


def _of(frame: AGraph, name: str) -> str:
    """An attribute of a frame, its own or from around it; "" where there is none."""
    try:
        return frame.graph_attr[name] or ""
    except KeyError:
        return ""


if __name__ == "__main__":
    main()
