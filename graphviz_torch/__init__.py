"""Autograd's graph, its gradients, its transfers: the public names."""

from .diff import GraphDiff, diff
from .findings import find, find_across, rules
from .graph import Edge, Finding, GradientStats, Graph, Node, TensorMeta, Transfer
from .parallel import batch_division
from .record import record
from .render.json import load
from .render.tensorboard import to_pbtxt, to_tensorboard
from .simulate import simulate_accelerator
from .tensorboard import add_autograd_graph
from .tracer import trace, walk

__all__ = [
    "Edge",
    "Finding",
    "GradientStats",
    "Graph",
    "GraphDiff",
    "Node",
    "TensorMeta",
    "Transfer",
    "add_autograd_graph",
    "batch_division",
    "diff",
    "find",
    "find_across",
    "load",
    "record",
    "rules",
    "simulate_accelerator",
    "to_pbtxt",
    "to_tensorboard",
    "trace",
    "walk",
]
