"""The values that a Graph consists of, their file format, and units.

This package imports only the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .collective import Collective as Collective
    from .collective import CollectiveCalls as CollectiveCalls
    from .collective import CollectiveKind as CollectiveKind
    from .collective import CollectivePhase as CollectivePhase
    from .collective import RankPosition as RankPosition
    from .collective import RankState as RankState
    from .collective import RankTime as RankTime
    from .collective import RankWait as RankWait
    from .events import Event as Event
    from .graph import Graph as Graph
    from .graph import GraphLike as GraphLike
    from .graph import Names as Names
    from .graph import graph_of as graph_of
    from .nodes import Edge as Edge
    from .nodes import LeafKind as LeafKind
    from .nodes import Mode as Mode
    from .nodes import ModuleRow as ModuleRow
    from .nodes import Node as Node
    from .tensors import Extent as Extent
    from .tensors import Fingerprint as Fingerprint
    from .tensors import GradientStats as GradientStats
    from .tensors import SavedKind as SavedKind
    from .tensors import SavedTensor as SavedTensor
    from .tensors import TensorMeta as TensorMeta
    from .tensors import itemsize as itemsize
    from .tensors import short_dtype as short_dtype
    from .training import Training as Training
    from .training_step import TrainingStep as TrainingStep
    from .values import FAILURE_RULES as FAILURE_RULES
    from .values import NO_PARAMETERS as NO_PARAMETERS
    from .values import Cause as Cause
    from .values import Cut as Cut
    from .values import Experiment as Experiment
    from .values import Failure as Failure
    from .values import Finding as Finding
    from .values import Operand as Operand
    from .values import Parameter as Parameter
    from .values import Phase as Phase
    from .values import Replica as Replica
    from .values import RetainedGraphs as RetainedGraphs
    from .values import Severity as Severity
    from .values import Step as Step
    from .values import Transfer as Transfer
    from .values import TransferKind as TransferKind
    from .values import Untracked as Untracked
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".collective": (
                "Collective CollectiveCalls CollectiveKind CollectivePhase RankPosition "
                "RankState RankTime RankWait"
            ),
            ".events": "Event",
            ".graph": "Graph GraphLike Names graph_of",
            ".nodes": "Edge LeafKind Mode ModuleRow Node",
            ".tensors": (
                "Extent Fingerprint GradientStats SavedKind SavedTensor TensorMeta "
                "itemsize short_dtype"
            ),
            ".training_step": "TrainingStep",
            ".training": "Training",
            ".values": (
                "FAILURE_RULES NO_PARAMETERS Cause Cut Experiment Failure Finding "
                "Operand Parameter Phase Replica RetainedGraphs Severity Step Transfer "
                "TransferKind Untracked"
            ),
        },
    )
