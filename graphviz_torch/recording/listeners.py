"""List the listeners of a recording in the order in which they receive events, and its queries.

With `gradients="finite"` the listeners that observe every call are left out. Arguments, losses,
gradient lifetimes, weight norms and retained graphs are then not recorded.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from . import queries
from .collectives.collectives import Collectives
from .collectives.replicas import Replicas
from .collectives.wrappers import Wrappers
from .cuts.cuts import Cuts
from .events.noise import MixedNoises
from .events.nonfinite import FiniteResults, NonfiniteValues
from .events.overwritten import Overwrites
from .events.setup import TrainingSetup
from .events.tokens import TokenUses
from .events.wrong_gradients import WrongGradients
from .failures import Failures
from .fingerprints import ResultFingerprints
from .gradients.gradients import Gradients
from .listener import Listener
from .modules.arguments import CallArguments
from .modules.average_buffers import AverageBuffers
from .modules.calls import FastPaths, SampleCalls
from .modules.first_call import FirstCall
from .modules.first_values import FirstValues
from .modules.forwards import Forwards
from .modules.train_modes import TrainModes
from .modules.updates import Updates
from .modules.weights import Weights
from .program.log import Query
from .small_values import SmallResults
from .steps.gradient_accesses import GradientAccesses
from .steps.gradients import StaleGradients
from .steps.history import GraphHistory
from .steps.later_losses import LaterLosses
from .steps.optimizer_calls import EarlySchedulers, OptimizerCalls
from .steps.progress import Progress
from .steps.steps import Steps
from .transfers.copies import Copies
from .untracked import UntrackedCalls

# Events are passed on in this order. `Copies` precedes `UntrackedCalls`, which reads the copies of
# an event in `program.tracker`.
LISTENERS: tuple[type[Listener], ...] = (
    FastPaths,
    NonfiniteValues,
    EarlySchedulers,
    TrainModes,
    TrainingSetup,
    OptimizerCalls,
    Steps,  # after the listener that appends the row of a new optimizer
    GradientAccesses,
    MixedNoises,
    TokenUses,
    Overwrites,
    WrongGradients,
    AverageBuffers,
    SampleCalls,
    FiniteResults,
    CallArguments,
    Cuts,
    Failures,
    StaleGradients,
    Gradients,
    Weights,
    FirstValues,
    Updates,
    GraphHistory,
    Progress,
    LaterLosses,
    Forwards,
    Copies,
    Collectives,
    Wrappers,
    Replicas,
    ResultFingerprints,
    SmallResults,
    UntrackedCalls,
    FirstCall,
)


def _queries() -> tuple[type[Query], ...]:
    """Return the queries in the files of `queries/`."""
    found: list[type[Query]] = []
    for file in iter_modules(queries.__path__):
        module = import_module(f"{queries.__name__}.{file.name}")
        own = [kind for kind in vars(module).values() if isinstance(kind, type)]
        found += [k for k in own if k.__module__ == module.__name__ and issubclass(k, Query)]
    return tuple(found)


QUERIES = _queries()
