"""Events about calls without the intended effect, and about parameter groups of an optimizer.

Objects have the names that the caller uses for them. `where` is the line of the call; for an
optimizer or a group, the line at which it steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Occurrence

# Argument of backward that keeps the graph.
RetainedBy = Literal["retain_graph", "create_graph"]
RecreatedKind = Literal["optimizer", "scheduler", "scaler"]
# Rate 0 in all groups, in one group, or in all from some step on; or a rate below 0.
RateKind = Literal["all", "group", "end", "negative"]


@dataclass(frozen=True, slots=True, repr=False)
class IneffectiveCall(Occurrence):
    """The base of events about calls without the intended effect."""


@dataclass(frozen=True, slots=True, repr=False)
class FunctionalDropoutInEval(IneffectiveCall):
    """A dropout that drops values in eval mode, at a line that drops in train mode as well."""

    function: str = ""  # "dropout"


@dataclass(frozen=True, slots=True, repr=False)
class UnneededRetainGraph(IneffectiveCall):
    """Backwards that keep their graph, though no other backward runs through it."""

    by: RetainedBy = "retain_graph"
    count: int = 0  # number of backwards


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerStepsTooOften(IneffectiveCall):
    """A scheduler that steps more often than its optimizer."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # scheduler steps
    steps: int = 0  # optimizer steps


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerPastEnd(IneffectiveCall):
    """A scheduler that runs past its end, where a cosine's learning rate rises again."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # scheduler steps
    end: int = 0  # T_max of the scheduler


@dataclass(frozen=True, slots=True, repr=False)
class UnusedScheduler(IneffectiveCall):
    """A scheduler whose optimizer never steps."""

    scheduler: str = ""
    count: int = 0  # scheduler steps


@dataclass(frozen=True, slots=True, repr=False)
class RecreatedObject(IneffectiveCall):
    """An optimizer, scheduler or scaler re-created for each step, which loses its state."""

    what: RecreatedKind = "optimizer"
    name: str = ""
    count: int = 0  # number of steps


@dataclass(frozen=True, slots=True, repr=False)
class StepWithoutGradients(IneffectiveCall):
    """Steps of an optimizer none of whose parameters has a gradient. `nodes` are theirs."""

    optimizer: str = ""
    count: int = 0  # number of steps


@dataclass(frozen=True, slots=True, repr=False)
class EmptyParameterGroup(IneffectiveCall):
    """A parameter group without parameters."""

    optimizer: str = ""
    group: int = 0
    groups: int = 0  # number of groups of the optimizer


@dataclass(frozen=True, slots=True, repr=False)
class DecayedNorms(IneffectiveCall):
    """Biases and norm weights with weight decay, though another group exists without decay.

    `nodes` are those of the parameters.
    """

    optimizer: str = ""
    group: int = 0
    groups: int = 0  # number of groups of the optimizer
    decay: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class VanishedEpsilon(IneffectiveCall):
    """An eps that is 0 in the dtype of some parameters, those of `nodes`."""

    optimizer: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class SharedParameters(IneffectiveCall):
    """Parameters that two stepping optimizers share. `nodes` are those of the parameters."""

    optimizer: str = ""
    other: str = ""
    count: int = 0  # number of parameters


@dataclass(frozen=True, slots=True, repr=False)
class ZeroLearningRate(IneffectiveCall):
    """Steps with a learning rate of 0, or below 0."""

    what: RateKind = "all"
    optimizer: str = ""
    group: int = 0
    groups: int = 0  # number of groups of the optimizer
    count: int = 0  # number of steps with such a rate
    steps: int = 0  # optimizer steps


@dataclass(frozen=True, slots=True, repr=False)
class ExtremeClipNorm(IneffectiveCall):
    """A clipping bound far below, or far above, every gradient norm."""

    function: str = ""  # "clip_grad_norm_"
    count: int = 0  # number of gradients
    share: float = 0.0  # median of bound / norm; above 1 the bound cuts nothing


@dataclass(frozen=True, slots=True, repr=False)
class CallPerSample(IneffectiveCall):
    """A module that is called once for each sample of a batch."""

    module: str = ""
    count: int = 0  # number of calls


@dataclass(frozen=True, slots=True, repr=False)
class ReorderedView(IneffectiveCall):
    """A view with the sizes of a transpose that keeps the order of the elements."""

    function: str = ""  # "view"
    before: tuple[int, ...] = ()  # sizes of the operand
    after: tuple[int, ...] = ()


AnyIneffectiveCall = (
    CallPerSample
    | ExtremeClipNorm
    | ReorderedView
    | DecayedNorms
    | EmptyParameterGroup
    | StepWithoutGradients
    | FunctionalDropoutInEval
    | ZeroLearningRate
    | UnusedScheduler
    | RecreatedObject
    | UnneededRetainGraph
    | SchedulerPastEnd
    | SchedulerStepsTooOften
    | SharedParameters
    | VanishedEpsilon
)
