"""List the listeners of a recording, in the order in which they receive events, and the queries.

With `gradients="finite"` the listeners that observe every call are left out. Arguments, losses,
gradient lifetimes, weight norms and retained graphs are then not recorded.
"""

from __future__ import annotations

from .collectives.collectives import Collectives
from .collectives.in_place import CollectivesInGraph
from .collectives.placements import Placements
from .collectives.replicas import Replicas
from .collectives.wrappers import Wrappers
from .compiled.skipped import SkippedFunctions
from .cuts.cuts import Cuts
from .events.attributes import TensorAttributes
from .events.context import ContextTensors
from .events.func_gradients import FuncGradients
from .events.ignored_results import IgnoredResults
from .events.ineffective_calls import DropoutAndRetainedGraphs, EvalModes
from .events.masks import AttentionMasks
from .events.means import MaskedMeans
from .events.noise import MixedNoises
from .events.nonfinite import FiniteResults, NonfiniteValues
from .events.overwritten import Overwrites
from .events.pairs import PairedTensors
from .events.redrawn_dropout import RedrawnDropouts
from .events.setup import Leaves, TrainingSetup
from .events.targets import Targets
from .events.tokens import TokenUses
from .events.unread_arguments import UnreadArguments
from .events.unused_losses import UnusedLosses
from .events.unused_names import UnusedNames
from .events.wrong_gradients import WrongGradients
from .failures.failures import Failures
from .gradients.gradients import Gradients
from .listener import Listener
from .modules.arguments import CallArguments
from .modules.average_buffers import AverageBuffers
from .modules.calls import FastPaths, Modes, SampleCalls
from .modules.first_call import FirstCall
from .modules.first_values import FirstValues
from .modules.forwards import Forwards
from .modules.train_modes import TrainModes
from .modules.updates import Updates
from .modules.weights import Weights
from .program.log import Query
from .queries.accumulation import Accumulation
from .queries.gradient_life import ClearedGradients, Clips, MixedGradients
from .queries.optimizers import (
    LostStates,
    OptimizerSteps,
    StepsWithoutGradients,
    ZeroLearningRates,
)
from .queries.rates import HandSetRates
from .queries.repeated_batches import RepeatedBatches
from .saved_tensors import Reruns, SavedTensors
from .steps.batches import Batches
from .steps.gradient_accesses import GradientAccesses
from .steps.gradients import ClipBounds, StaleGradients
from .steps.history import GraphHistory
from .steps.later_losses import LaterLosses
from .steps.optimizer_calls import EarlySchedulers, OptimizerCalls
from .steps.optimizer_lines import OptimizerLines
from .steps.progress import Progress
from .steps.steps import Steps
from .transfers.copies import Copies
from .untracked import UntrackedCalls
from .values.data_views import DataViews
from .values.results import ResultFingerprints
from .values.small import SmallResults

# Events are passed on in this order. `Copies` precedes `UntrackedCalls`, which reads the copies of
# an event in `program.tracker`.
LISTENERS: tuple[type[Listener], ...] = (
    FastPaths,
    NonfiniteValues,
    EarlySchedulers,
    EvalModes,
    TrainModes,
    TrainingSetup,
    Leaves,
    TensorAttributes,
    PairedTensors,
    DropoutAndRetainedGraphs,
    OptimizerCalls,
    OptimizerLines,
    Steps,  # after the listener that appends the row of a new optimizer
    GradientAccesses,
    Targets,
    MaskedMeans,
    MixedNoises,
    TokenUses,
    AttentionMasks,
    Overwrites,
    UnreadArguments,
    UnusedNames,
    UnusedLosses,
    ContextTensors,
    WrongGradients,
    FuncGradients,
    IgnoredResults,
    AverageBuffers,
    RedrawnDropouts,
    Batches,
    ClipBounds,
    SampleCalls,
    FiniteResults,
    CallArguments,
    Cuts,
    Failures,
    StaleGradients,
    SavedTensors,
    Reruns,
    Gradients,
    Weights,
    FirstValues,
    Updates,
    Modes,
    GraphHistory,
    Progress,
    LaterLosses,
    Forwards,
    Copies,
    Collectives,
    CollectivesInGraph,
    Placements,
    Wrappers,
    Replicas,
    DataViews,
    ResultFingerprints,
    SmallResults,
    UntrackedCalls,
    SkippedFunctions,
    FirstCall,
)

# Each row of the log is read in this order.
QUERIES: tuple[type[Query], ...] = (
    OptimizerSteps,
    ZeroLearningRates,
    HandSetRates,
    StepsWithoutGradients,
    LostStates,
    ClearedGradients,
    MixedGradients,
    Clips,
    RepeatedBatches,
    Accumulation,
)
