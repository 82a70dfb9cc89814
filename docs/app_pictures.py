"""Draw the small pictures on the app's cards, and record the app's worked example.

Run `python docs/app_pictures.py`. Each picture shows the graph of one model of the gallery after
backward, without text. The app's first page shows the recording before any job has run.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import graphviz
import pygraphviz

from app.jobs.backward import play
from app.jobs.values import Choice
from app.models import gallery
from app.panels import example
from graphviz_torch import Graph

SIZE = "2.6,1.3!"  # inches; all pictures have this size
MOST_BOXES = 60
COLORS = {"input": "#0a6ebd", "parameter": "#8794a1", "": "#c3ccd5", "copy": "#e0701c"}


def boxes(graph: Graph) -> list[str]:
    """Return the box of each node; in a large graph, all nodes of a module's call share a box."""
    if len(graph.nodes) <= MOST_BOXES:
        return [str(node.id) for node in graph.nodes]
    calls = (".".join(node.scope.split(".")[:2]) or str(node.id) for node in graph.nodes)
    leaves = (" parameters" if node.leaf else "" for node in graph.nodes)
    return [call + leaf for call, leaf in zip(calls, leaves, strict=True)]


def silhouette(graph: Graph) -> str:
    """Return an SVG of the graph: colored boxes for leaves, operations, copies and outputs."""
    box = boxes(graph)
    dot = graphviz.Digraph(
        graph_attr={"rankdir": "LR", "nodesep": "0.15", "ranksep": "0.2", "bgcolor": "transparent",
                    "size": SIZE, "ratio": "fill", "margin": "0"},
        node_attr={"shape": "box", "style": "filled,rounded", "label": "", "width": "0.35",
                   "height": "0.22", "color": "transparent"},
        edge_attr={"color": "#8794a1", "arrowhead": "none", "penwidth": "2"},
    )  # fmt: skip
    for node in graph.nodes:
        role = (
            "copy" if "Copy" in node.name or node.name.startswith(("Gather", "Broadcast")) else ""
        )
        if node.leaf:
            role = "parameter" if node.leaf == "parameter" else "input"
        color = "#2a9d6f" if node.id in graph.outputs else COLORS[role]
        dot.node(box[node.id], fillcolor=color)
    ends = dict.fromkeys((box[edge.source], box[edge.target]) for edge in graph.edges)
    for source, target in ends:
        if source != target:
            dot.edge(source, target)
    svg = pygraphviz.AGraph(string=dot.source).draw(format="svg", prog="dot").decode()
    svg = re.sub(r"<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<title>.*?</title>\s*", "", svg)
    svg = re.sub(r' (id|class|text-rendering|stroke="transparent")="[^"]*"', "", svg)
    svg = re.sub(r"-?\d{2,}\.\d{2,}", lambda number: f"{float(number[0]):.1f}", svg)
    ElementTree.fromstring(svg)
    return "\n".join(line for line in svg.splitlines() if line.strip()) + "\n"


def main() -> None:
    """Draw every model of the gallery, and record the worked example."""
    run = play(example.CHOICE, backward=False)
    assert run.opened is not None
    run.opened.graph.save(example.RECORDING)
    for name in gallery.NAMES:
        count = gallery.DEVICES[name][0]
        run = play(Choice("model", f"sim{count}", model=name), backward=True)
        assert run.opened is not None
        path = gallery.model(name).picture
        path.parent.mkdir(exist_ok=True)
        path.write_text(silhouette(run.opened.graph), encoding="utf-8")
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
