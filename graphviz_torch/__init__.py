"""Autograd's graph, its gradients, its transfers: the public names."""

__version__ = "1.0.0"

from .checkpoint.checkpoint import (
    Differences,
    compare_checkpoint,
    graph_beside,
    load_checkpoint,
    save_checkpoint,
)
from .checkpoint.verify import Difference, Verification, verify
from .comparison.diff import GraphDiff, diff
from .devices.bandwidth import Bandwidth, measure_bandwidth
from .devices.batch import batch_division
from .devices.compare import Comparison, compare_devices
from .devices.mover import Move, Moves
from .devices.simulated.accelerator import simulate_accelerator
from .devices.to_device import available_devices, move_locals, to_device
from .findings import find, find_across, rules
from .graph import Edge, Finding, GradientStats, Graph, Node, TensorMeta, Transfer
from .graph.argument import read_with
from .graph.json import load
from .graph.values import show_with
from .recording.recording import record
from .recording.target import read
from .render.dot.dot import to_dot
from .render.draw import draw_graph, make_dot
from .render.html import to_html, view_graph, view_payload, view_script
from .render.text import to_text
from .tensorboard.add_graph import add_autograd_graph
from .tensorboard.scalars import add_distribution, add_gradients, add_transfers
from .tensorboard.watch import watch
from .tensorboard.writer import to_pbtxt, to_tensorboard
from .tracing.distributed import collectives, gather, local_shapes
from .tracing.tracer import trace, walk

__all__ = [
    "Bandwidth",
    "Comparison",
    "Difference",
    "Differences",
    "Edge",
    "Finding",
    "GradientStats",
    "Graph",
    "GraphDiff",
    "Move",
    "Moves",
    "Node",
    "TensorMeta",
    "Transfer",
    "Verification",
    "add_autograd_graph",
    "add_distribution",
    "add_gradients",
    "add_transfers",
    "available_devices",
    "batch_division",
    "collectives",
    "compare_checkpoint",
    "compare_devices",
    "diff",
    "draw_graph",
    "find",
    "find_across",
    "gather",
    "graph_beside",
    "load",
    "load_checkpoint",
    "local_shapes",
    "make_dot",
    "measure_bandwidth",
    "move_locals",
    "record",
    "rules",
    "save_checkpoint",
    "simulate_accelerator",
    "to_device",
    "to_dot",
    "to_html",
    "to_pbtxt",
    "to_tensorboard",
    "to_text",
    "trace",
    "verify",
    "view_graph",
    "view_payload",
    "view_script",
    "walk",
    "watch",
]

read_with(read)
show_with(lambda graph, include, exclude: draw_graph(graph)._repr_mimebundle_(include, exclude))
