"""Compare `SummaryWriter.add_graph` with `to_tensorboard` on the same model.

    python -m tests.bench.bench_tensorboard [nodes of the largest graph, by default 100000]

Prints the table of the documentation, then the times to write graphs and the cost of the plugin.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import config_pb2, graph_pb2
from torch.utils.tensorboard import SummaryWriter

from graphviz_torch import to_tensorboard
from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
from graphviz_torch.recording.recording import record
from tests.support.models import gpt2, tokens


class Logits(torch.nn.Module):
    """GPT-2 that returns a tensor: `add_graph` refuses the original result."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt2 = gpt2(12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(ids).logits


def theirs(model: torch.nn.Module, ids: torch.Tensor, directory: Path) -> dict[str, Any]:
    """Write with `add_graph`; return facts about the result, with time and memory."""
    writer = SummaryWriter(str(directory))
    before = [module.training for module in model.modules()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        writer.add_graph(model, ids)
        seconds = time.perf_counter() - start
    writer.close()
    events = EventAccumulator(str(directory)).Reload()
    metadata = events.RunMetadata(events.Tags()["run_metadata"][0])
    return points(events.Graph(), metadata) | {
        "modules put into another mode": modes_changed(model, before),
        "runs the model": "again, traced",
        "warnings": len(caught),
        "seconds": f"{seconds:.2f}",
    }


def ours(model: torch.nn.Module, ids: torch.Tensor, directory: Path) -> dict[str, Any]:
    """Write with `to_tensorboard`; return the same facts. The time includes the recording."""
    before = [module.training for module in model.modules()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        with record(model) as recording:
            loss = model(ids).square().mean()
            loss.backward()
        to_tensorboard(recording.graph, directory, backward=True)
        seconds = time.perf_counter() - start
    (event,) = EventAccumulator(str(directory)).Reload().Tensors("graph")
    metadata = config_pb2.RunMetadata.FromString(event.tensor_proto.string_val[0])
    return points(metadata.function_graphs[0].pre_optimization_graph, metadata) | {
        "modules put into another mode": modes_changed(model, before),
        "runs the model": "no: reads your own run",
        "warnings": len(caught),
        "seconds": f"{seconds:.2f}",
    }


def modes_changed(model: torch.nn.Module, before: list[bool]) -> int:
    """Return the number of modules whose training mode has changed."""
    now = [module.training for module in model.modules()]
    return sum(a != b for a, b in zip(before, now, strict=True))


def points(graph: graph_pb2.GraphDef, metadata: config_pb2.RunMetadata) -> dict[str, Any]:
    """Return facts about a graph that the Graphs tab can show."""
    nodes = graph.node
    backward = [node for node in nodes if node.name.startswith("backward/")]
    children: dict[str, set[str]] = {}
    for node in nodes:
        parts = node.name.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    shaped = sum(
        any(not shape.unknown_rank for shape in node.attr["_output_shapes"].list.shape)
        for node in nodes
        if "_output_shapes" in node.attr
    )
    stats = [s for device in metadata.step_stats.dev_stats for s in device.node_stats]
    return {
        "nodes, forward": len(nodes) - len(backward),
        "nodes, backward": len(backward),
        "nodes with a device": sum(bool(node.device) for node in nodes),
        "nodes with a dtype": sum("T" in node.attr for node in nodes),
        "nodes with output shapes": shaped,
        "nodes with a source line": sum("line" in node.attr for node in nodes),
        "nodes with gradient statistics": sum("gradient" in node.attr for node in backward),
        "nodes with a measured time": sum(entry.all_end_rel_micros > 0 for entry in stats),
        "nodes labelled by a number": sum(node.name.rpartition("/")[2].isdigit() for node in nodes),
        "most children of a scope": max(map(len, children.values())),
    }


def refused(model: torch.nn.Module, given: torch.Tensor) -> str:
    """Return the error of `add_graph` for a model that `to_tensorboard` supports."""
    with (
        tempfile.TemporaryDirectory() as directory,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            SummaryWriter(directory).add_graph(model, given)
        except Exception as error:
            return type(error).__name__
    return "taken"


def synthetic(count: int) -> Graph:
    """Return a graph with nodes in scopes of 50."""
    meta = TensorMeta((8, 16), "float32", "cpu")
    nodes = tuple(
        Node(
            i, "MulBackward0", (meta,), operation="mul", scope=f"layers.{i // 1000}.{i // 50 % 20}"
        )
        for i in range(count)
    )
    return Graph(nodes, tuple(Edge(i - 1, i) for i in range(1, count)), ((count - 1, 0),))


def seconds_to_start(code: str) -> float:
    """Return the time of new Python processes that run `code`: the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.manual_seed(0)
    model, ids = Logits(), tokens()
    with tempfile.TemporaryDirectory() as top:
        left = theirs(model, ids, Path(top, "add_graph"))
        model.gpt2.eval()  # add_graph has left the model in train()
        right = ours(model, ids, Path(top, "to_tensorboard"))
        print("| GPT-2, 12 layers | add_graph | to_tensorboard(backward=True) |\n|---|---|---|")
        for point in left:
            print(f"| {point} | {left[point]} | {right[point]} |")
        print(f"| the model as it is, not wrapped | {refused(gpt2(1), ids)} | taken |")
        print("\n| nodes | seconds to write | MB in the event file |\n|---|---|---|")
        largest = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
        for count in sorted({1000, 10_000, largest}):
            graph = synthetic(count)
            directory = Path(top, str(count))
            start = time.perf_counter()
            to_tensorboard(graph, directory)
            seconds = time.perf_counter() - start
            size = sum(file.stat().st_size for file in directory.iterdir()) / 1e6
            print(f"| {count} | {seconds:.2f} | {size:.1f} |")
    plain = "import tensorboard.main_lib, tensorboard.default as d; d.get_static_plugins()"
    both = plain + "; d.get_dynamic_plugins()"
    print(f"\nTensorBoard's plugins: {seconds_to_start(plain):.2f} s without ours, ", end="")
    print(f"{seconds_to_start(both):.2f} s with ours (it imports torch).")


if __name__ == "__main__":
    main()
