"""The values: a graph without a tensor, its files, and its units. Standard library only."""

from .argument import GraphLike, Names, graph_of
from .graph import Graph
from .nodes import Edge, LeafKind, Node
from .tensors import (
    Extent,
    GradientStats,
    SavedKind,
    SavedTensor,
    TensorMeta,
    itemsize,
    short_dtype,
)
from .values import (
    FAILURE_RULES,
    NO_PARAMETERS,
    Cause,
    Cut,
    Event,
    EventKind,
    Failure,
    Finding,
    Operand,
    Parameter,
    Phase,
    RetainedGraphs,
    Severity,
    Step,
    Transfer,
    TransferKind,
)
from .whole import FindingsLike, findings_of, whole_of

__all__ = [
    "FAILURE_RULES",
    "NO_PARAMETERS",
    "Cause",
    "Cut",
    "Edge",
    "Event",
    "EventKind",
    "Extent",
    "Failure",
    "Finding",
    "FindingsLike",
    "GradientStats",
    "Graph",
    "GraphLike",
    "LeafKind",
    "Names",
    "Node",
    "Operand",
    "Parameter",
    "Phase",
    "RetainedGraphs",
    "SavedKind",
    "SavedTensor",
    "Severity",
    "Step",
    "TensorMeta",
    "Transfer",
    "TransferKind",
    "findings_of",
    "graph_of",
    "itemsize",
    "short_dtype",
    "whole_of",
]
