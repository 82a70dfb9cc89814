"""The values: a graph without a tensor, its files, and its units. Standard library only."""

from .argument import GraphLike, Names, graph_of
from .collective import (
    Collective,
    CollectiveCalls,
    CollectiveKind,
    CollectivePhase,
    RankPosition,
    RankState,
    RankTime,
    RankWait,
)
from .events import Event
from .graph import Graph
from .nodes import Edge, LeafKind, Mode, ModuleRow, Node
from .tensors import (
    Extent,
    Fingerprint,
    GradientStats,
    SavedKind,
    SavedTensor,
    TensorMeta,
    itemsize,
    short_dtype,
)
from .training.step import TrainingStep
from .training.training import Training
from .values import (
    FAILURE_RULES,
    NO_PARAMETERS,
    Cause,
    Cut,
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
    "Collective",
    "CollectiveCalls",
    "CollectiveKind",
    "CollectivePhase",
    "Cut",
    "Edge",
    "Event",
    "Extent",
    "Failure",
    "Finding",
    "FindingsLike",
    "Fingerprint",
    "GradientStats",
    "Graph",
    "GraphLike",
    "LeafKind",
    "Mode",
    "ModuleRow",
    "Names",
    "Node",
    "Operand",
    "Parameter",
    "Phase",
    "RankPosition",
    "RankState",
    "RankTime",
    "RankWait",
    "RetainedGraphs",
    "SavedKind",
    "SavedTensor",
    "Severity",
    "Step",
    "TensorMeta",
    "Training",
    "TrainingStep",
    "Transfer",
    "TransferKind",
    "findings_of",
    "graph_of",
    "itemsize",
    "short_dtype",
    "whole_of",
]
