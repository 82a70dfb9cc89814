"""What opens, compares and writes recordings. All of it runs in a job: a file may be hostile."""

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

from .backward import opened
from .values import FIRST_JUDGED, LAST_JUDGED, Compared, Opened, Way

MAX_NODES = 50_000  # that the app shows
MAX_EDGES = 200_000
MOST = "the app shows at most {:,}. On your machine, `graphviz-torch` reads all of it."


def read(data: bytes, name: str) -> Opened:
    """The graph in an uploaded file, judged and ready to be drawn.

    Raises:
        ValueError: if it is not a recording, is one without a node, or one that is too large.
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
        raise ValueError(f"{name} is an empty recording: it has no node.")
    sizes = [("nodes", len(graph.nodes), MAX_NODES), ("edges", len(graph.edges), MAX_EDGES)]
    sizes.append(("copies", len(graph.transfers), MAX_EDGES))
    for what, count, most in sizes:
        if count > most:
            raise ValueError(f"{name} has {count:,} {what}; {MOST.format(most)}")
    if not isinstance(saved, Training):
        return opened(graph)
    steps = saved.steps
    judged = (*steps[:FIRST_JUDGED], *steps[FIRST_JUDGED:][-LAST_JUDGED:])
    numbers = tuple(step.number for step in steps)
    return replace(opened(graph), findings=tuple(find(Training(judged))), steps=numbers)


def compare(one: Graph, other: Graph, titles: tuple[str, str]) -> Compared:
    """What the second graph has more, has less, and has otherwise."""
    difference = diff(one, other, titles=titles)
    changed = len({change.b for change in difference.changed})
    payload = view_payload(difference)
    text = difference.to_text(limit=500) if difference else ""
    return Compared(len(difference.added), len(difference.removed), changed, payload, text)


def by_module(graph: Graph) -> Summary:
    """What each module computes, holds, keeps for backward and learns."""
    return summary(graph)


def way_to(graph: Graph, target: str | int) -> Way:
    """The way of the gradient to a parameter or node, with what each node did to its norm."""
    way = explain(graph, target)
    says = way.to_text().splitlines()[1 + bool(way.points) + len(way.points) :]
    if way.points:
        says.insert(0, way.to_text().splitlines()[0] + ".")
    steps = tuple((p.node, p.module, p.norm, p.factor) for p in way.points)
    return Way(steps, tuple(says))


def written(graph: Graph, findings: Sequence[Finding], name: str) -> bytes:
    """A graph in one of `FORMATS`."""
    return _WRITERS[name](graph, findings)


def as_picture(graph: Graph, findings: Sequence[Finding], format: str) -> bytes:
    """The still picture as "svg", "png" or "pdf"."""
    drawn = draw_graph(graph, findings=findings).pipe(format)
    return drawn if isinstance(drawn, bytes) else drawn.encode()


def as_flow(graphs: tuple[Graph, ...]) -> str:
    """The gradient of one step as a river, or of two beside each other, as SVG."""
    return draw_flow(*graphs)


def as_json(graph: Graph) -> bytes:
    """The graph as `Graph.save` writes it: the Explore page and `load` open it again."""
    with tempfile.TemporaryDirectory() as folder:
        return graph.save(Path(folder) / "graph.json").read_bytes()


def as_tensorboard(graph: Graph) -> bytes:
    """A TensorBoard run in a zip file: unpack it, then `tensorboard --logdir .`."""
    with tempfile.TemporaryDirectory() as folder:
        to_tensorboard(graph, Path(folder) / "graph")
        return zipped(Path(folder))


def zipped(folder: Path) -> bytes:
    """A zip file of what is in a folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))
    return made.getvalue()


def as_findings(findings: Sequence[Finding]) -> bytes:
    """The findings as JSON."""
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
