"""Who listens to a recording, in the order in which they are told.

Of `gradients="finite"` those are left out that ask something of every call: arguments, losses, the
life of gradients, weights' norms, and graphs that are kept.
"""

from __future__ import annotations

from .collectives.collectives import Collectives
from .collectives.placements import Placements
from .collectives.replicas import Replicas
from .collectives.wrappers import Wrappers
from .compiled.gradients import InnerGradients
from .compiled.skipped import SkippedFunctions
from .cuts.cuts import Cuts
from .events.attributes import TensorAttributes
from .events.eval_mode import EvalModes
from .events.gradient_life import GradientLife
from .events.idle_calls import IdleCalls
from .events.leaves import Leaves
from .events.nonfinite import NonfiniteValues
from .events.pairs import PairedTensors
from .events.setup import TrainingSetup
from .events.targets import Targets
from .failures.failures import Failures
from .gradients.gradients import Gradients
from .gradients.results import FiniteResults
from .listener import Listener
from .modules.arguments import Arguments
from .modules.fast_paths import FastPaths
from .modules.first_call import FirstCall
from .modules.modes import Modes
from .modules.samples import SampleCalls
from .modules.updates import Updates
from .modules.weights import Weights
from .reruns import Reruns
from .saved_tensors import SavedTensors
from .steps.batches import Batches
from .steps.clip_bounds import ClipBounds
from .steps.history import GraphHistory
from .steps.optimizer_calls import OptimizerCalls
from .steps.optimizer_steps import OptimizerSteps
from .steps.schedules import EarlySchedulers
from .steps.zero_grad import ClearedGradients
from .transfers.copies import Copies
from .values.data_views import DataViews
from .values.results import ResultValues

LISTENERS: tuple[type[Listener], ...] = (
    FastPaths,
    NonfiniteValues,
    GradientLife,
    OptimizerSteps,
    EarlySchedulers,
    EvalModes,
    TrainingSetup,
    Leaves,
    TensorAttributes,
    PairedTensors,
    IdleCalls,
    OptimizerCalls,
    Targets,
    Batches,
    ClipBounds,
    SampleCalls,
    FiniteResults,
    Arguments,
    Cuts,
    Failures,
    ClearedGradients,
    SavedTensors,
    Reruns,
    Gradients,
    Weights,
    Updates,
    Modes,
    GraphHistory,
    Copies,
    Collectives,
    Placements,
    Wrappers,
    Replicas,
    DataViews,
    ResultValues,
    InnerGradients,
    SkippedFunctions,
    FirstCall,
)
