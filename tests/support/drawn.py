"""Small graphs to draw, and functions that read DOT with Graphviz and SVG with an XML parser."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.drawing.drawing import Drawing
from graphviz_torch.render.drawing.steps import draw

F32 = TensorMeta((3,), "float32", "cpu")


HOSTILE = [
    'say "hi"',
    "<b>bold</b>",
    "back\\slash \\N \\G \\l",
    "two\nlines",
    "a  b   c",
    "snowman ☃ and ünïcode",
    "</svg><script>alert(1)</script>",
    "&amp; &#65; &",
    "a -> b; c [label=x]",
    "{curly} | pipe",
    "%s {0} $x",
    "x" * 300,
]


def two(**fields: Any) -> Graph:
    """Return a graph of a leaf and one operation with the given fields."""
    leaf = Node(0, "AccumulateGrad", (F32,), "x", leaf="tensor")
    user = Node(1, "MulBackward0", (F32,), operation="mul")._replace(**fields)
    return Graph((leaf, user), (Edge(0, 1),), ((1, 0),))


def texts(svg: bytes, title: str) -> list[str]:
    """Return the lines of text in the node with this title, as a browser shows them."""
    tree = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    for group in tree.iter(f"{space}g"):
        if group.get("class") == "node" and group.findtext(f"{space}title") == title:
            lines: dict[str, str] = {}
            for text in group.iter(f"{space}text"):
                lines[text.get("y", "")] = lines.get(text.get("y", ""), "") + (text.text or "")
            return [line.strip("\u200a") for line in lines.values()]
    raise AssertionError(f"no node {title}")


class Drawn:
    """The nodes, edges and clusters of a DOT text, as Graphviz reads them."""

    def __init__(self, dot: str) -> None:
        read = json.loads(layout(dot, "json"))
        objects = read.get("objects", [])
        self.clusters = {o["label"]: o for o in objects if "cluster" in o["name"]}
        self.nodes = {
            o["name"]: o
            for o in objects
            if not o["name"].startswith(("cluster", "in_", "out_", "turn_"))
        }
        names = {o["_gvid"]: o["name"] for o in objects}
        self.edges, self.labels = [], []
        for edge in read.get("edges", []):
            tail, head = names[edge["tail"]], names[edge["head"]]
            if edge.get("style") == "invis" or head.startswith(("out_", "turn_")):
                continue
            if tail.startswith(("in_", "turn_")):  # the second part of an edge between columns
                tail = tail.split("_")[1]
            self.edges.append((tail, head))
            self.labels.append(edge.get("label", "").strip())
        self.inside = {
            label: {names[i] for i in cluster.get("nodes", [])}
            for label, cluster in self.clusters.items()
        }


def colors(svg: bytes, title: str) -> set[str]:
    found = re.search(rf"<title>{title}</title>(.*?)</g>", svg.decode(), re.S)
    assert found is not None
    return set(re.findall(r'(?:fill|stroke)="([^"]+)"', found[1]))


def repeated(blocks: int) -> Graph:
    """Return a graph with a chain of equal blocks, each of two operations."""
    paths = [f"net.{i // 2}" for i in range(2 * blocks)]
    nodes = [
        Node(i, "MulBackward0", (F32,), operation="mul", scope=path, module=path)
        for i, path in enumerate(paths)
    ]
    return Graph(tuple(nodes), tuple(Edge(i, i + 1) for i in range(2 * blocks - 1)), ((7, 0),))


def named(graph: Graph, title: str) -> list[int]:
    return [node.id for node in graph.nodes if node.title == title]


def lines(dot: str, key: object) -> str:
    """Return the line of a DOT text that declares a node."""
    return next(
        line
        for line in dot.splitlines()
        if line.startswith(f"\t{key} [") or line.strip().startswith(f"{key} [label")
    )


def visible(graph: Graph, **options: Any) -> Drawing:
    """Return the drawing of a graph."""
    return draw(graph, options)  # type: ignore[arg-type]
