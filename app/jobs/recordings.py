"""Jobs that open, compare and write recordings.

Files are read in jobs, so that a hostile file can harm only the process of its own job.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from graphviz_torch import (
    Finding,
    Graph,
    diff,
    draw_flow,
    draw_graph,
    explain,
    find,
    load,
    summary,
    to_html,
    to_tensorboard,
)
from graphviz_torch.export import Summary, to_dot, view_payload
from graphviz_torch.graph import Training

from .backward import open_graph
from .values import FIRST_CHECKED, LAST_CHECKED, GradientSteps, GraphComparison, OpenedGraph

MAX_NODES = 50_000  # largest graph that the app shows
MAX_EDGES = 200_000
TOO_MANY = "the app shows at most {:,}. On your machine, `graphviz-torch` reads all of them."


def read(data: bytes, name: str) -> OpenedGraph:
    """Load the graph in an uploaded file, and find its problems.

    Raises:
        ValueError: if the file is not a recording, or if it has no node or too many nodes.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(data)
        try:
            saved = load(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), name)) from None
    graph = saved.graph if isinstance(saved, Training) else saved
    if not graph.nodes:
        raise ValueError(f"{name} is an empty recording: its graph has no nodes.")
    sizes = [("nodes", len(graph.nodes), MAX_NODES), ("edges", len(graph.edges), MAX_EDGES)]
    sizes.append(("copies", len(graph.transfers), MAX_EDGES))
    for what, count, most in sizes:
        if count > most:
            raise ValueError(f"{name} has {count:,} {what}; {TOO_MANY.format(most)}")
    if not isinstance(saved, Training):
        return open_graph(graph)
    steps = saved.steps
    judged = (*steps[:FIRST_CHECKED], *steps[FIRST_CHECKED:][-LAST_CHECKED:])
    numbers = tuple(step.number for step in steps)
    return replace(open_graph(graph), findings=tuple(find(Training(judged))), steps=numbers)


def compare(one: Graph, other: Graph, titles: tuple[str, str]) -> GraphComparison:
    """Compare two graphs: count nodes that were added, removed or changed, and draw both."""
    difference = diff(one, other, titles=titles)
    changed = len({change.b for change in difference.changed})
    payload = view_payload(difference)
    text = difference.to_text(limit=500) if difference else ""
    return GraphComparison(len(difference.added), len(difference.removed), changed, payload, text)


def by_module(graph: Graph) -> Summary:
    """Return a table with each module's outputs, parameters, FLOPs, saved bytes and gradients."""
    return summary(graph)


def gradient_path(graph: Graph, target: str | int) -> GradientSteps:
    """Return the gradient's path from the loss to a node, with the norm at each node."""
    path = explain(graph, target)
    sentences = path.to_text().splitlines()[1 + bool(path.points) + len(path.points) :]
    if path.points:
        sentences.insert(0, path.to_text().splitlines()[0] + ".")
    steps = tuple((p.node, p.module, p.norm, p.factor) for p in path.points)
    return GradientSteps(steps, tuple(sentences))


def to_format(graph: Graph, findings: Sequence[Finding], name: str) -> bytes:
    """Return a graph in one of the formats of `panels.recording.FORMATS`."""
    return _WRITERS[name](graph, findings)


def as_picture(graph: Graph, findings: Sequence[Finding], format: str) -> bytes:
    """Return a picture of the graph in a format: "svg", "png" or "pdf"."""
    drawn = draw_graph(graph, findings=findings).pipe(format)
    return drawn if isinstance(drawn, bytes) else drawn.encode()


def as_flow(graphs: tuple[Graph, ...]) -> str:
    """Return the gradient flow diagram of one step, or of two steps side by side, as SVG."""
    drawn: str = draw_flow(*graphs).source
    return drawn


def as_json(graph: Graph) -> bytes:
    """Return the file that `Graph.save` writes, which `load` and the page Explore can open."""
    with tempfile.TemporaryDirectory() as folder:
        return graph.save(Path(folder) / "graph.json").read_bytes()


def as_tensorboard(graph: Graph) -> bytes:
    """Return a zip file with a TensorBoard run, for `tensorboard --logdir .` in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        to_tensorboard(graph, Path(folder) / "graph")
        return zip_folder(Path(folder))


def zip_folder(folder: Path) -> bytes:
    """Return a zip file with all files of a folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))
    return made.getvalue()


def as_findings(findings: Sequence[Finding]) -> bytes:
    """Return the findings as a JSON list."""
    return json.dumps([asdict(finding) for finding in findings], indent=2).encode()


_WRITERS: dict[str, Callable[[Graph, Sequence[Finding]], bytes]] = {
    "SVG": lambda graph, findings: as_picture(graph, findings, "svg"),
    "PNG": lambda graph, findings: as_picture(graph, findings, "png"),
    "PDF": lambda graph, findings: as_picture(graph, findings, "pdf"),
    "DOT": lambda graph, findings: to_dot(graph, findings=findings).encode(),
    "JSON": lambda graph, _: as_json(graph),
    "HTML": lambda graph, findings: to_html(graph, findings=findings).encode(),
    "TensorBoard": lambda graph, _: as_tensorboard(graph),
    "Findings": lambda _, findings: as_findings(findings),
}
