"""Autograd's graph, its gradients, its transfers: the public names."""

from .findings import find, find_across, rules
from .graph import Edge, Finding, GradientStats, Graph, Node, TensorMeta, Transfer
from .render.json import load
from .simulate import simulate_accelerator
from .tracer import trace, walk

__all__ = [
    "Edge",
    "Finding",
    "GradientStats",
    "Graph",
    "Node",
    "TensorMeta",
    "Transfer",
    "find",
    "find_across",
    "load",
    "rules",
    "simulate_accelerator",
    "trace",
    "walk",
]
