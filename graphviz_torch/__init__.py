"""Autograd's graph, its gradients, its transfers: the public names."""

from .bandwidth import Bandwidth, measure_bandwidth
from .checkpoint import (
    Differences,
    compare_checkpoint,
    graph_beside,
    load_checkpoint,
    save_checkpoint,
)
from .compare import Comparison, compare_devices
from .devices import available_devices, move_locals, to_device
from .diff import GraphDiff, diff
from .distributed import collectives, gather, local_shapes
from .draw import draw_graph, make_dot
from .equality import Difference, Verification, verify
from .findings import find, find_across, rules
from .graph import Edge, Finding, GradientStats, Graph, Node, TensorMeta, Transfer
from .moving import Move, Moves
from .parallel import batch_division
from .record import record
from .render.dot import to_dot
from .render.html import to_html, view_graph, view_payload, view_script
from .render.json import load
from .render.tensorboard import to_pbtxt, to_tensorboard
from .render.tensorboard_steps import add_distribution, add_gradients, add_transfers
from .render.text import to_text
from .simulate import simulate_accelerator
from .tensorboard import add_autograd_graph
from .tracer import trace, walk
from .watch import watch

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
