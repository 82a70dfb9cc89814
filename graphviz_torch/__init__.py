"""Autograd's graph, its gradients, its transfers: the public names."""

from .graph import Edge, Finding, GradientStats, Graph, Node, TensorMeta, Transfer
from .render.json import load
from .tracer import trace, walk

__all__ = [
    "Edge",
    "Finding",
    "GradientStats",
    "Graph",
    "Node",
    "TensorMeta",
    "Transfer",
    "load",
    "trace",
    "walk",
]
