"""Calls that do not do what they are for, and groups of an optimizer that do not.

What is called is named as its caller calls it. `where` is the line that calls it; of what is said
of an optimizer or a group, the line at which it steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Occurrence

# Which argument of a backward keeps its graph.
RetainedBy = Literal["retain_graph", "create_graph"]
RecreatedKind = Literal["optimizer", "scheduler", "scaler"]
# The rate of a group alone; of all of them, from a step on; a rate below 0.
RateKind = Literal["all", "group", "end", "negative"]


@dataclass(frozen=True, slots=True, repr=False)
class IneffectiveCall(Occurrence):
    """A call that does not do what it is for: a kind of it is a class of its own."""


@dataclass(frozen=True, slots=True, repr=False)
class FunctionalDropoutInEval(IneffectiveCall):
    """A dropout that drops in eval mode, at a line that drops in train mode too."""

    function: str = ""  # "dropout"


@dataclass(frozen=True, slots=True, repr=False)
class UnneededRetainGraph(IneffectiveCall):
    """Backwards that keep their graphs, through which no other one runs."""

    by: RetainedBy = "retain_graph"
    count: int = 0  # of backwards


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerStepsTooOften(IneffectiveCall):
    """A scheduler that steps more often than its optimizer."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # steps of the scheduler
    steps: int = 0  # of the optimizer


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerPastEnd(IneffectiveCall):
    """A scheduler that goes on past its end, from where the rate of a cosine rises again."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # steps of the scheduler
    end: int = 0  # its T_max


@dataclass(frozen=True, slots=True, repr=False)
class UnusedScheduler(IneffectiveCall):
    """A scheduler whose optimizer never steps."""

    scheduler: str = ""
    count: int = 0  # steps of the scheduler


@dataclass(frozen=True, slots=True, repr=False)
class RecreatedObject(IneffectiveCall):
    """What is made anew for each step, and loses what it had learnt or counted."""

    what: RecreatedKind = "optimizer"
    name: str = ""
    count: int = 0  # of steps


@dataclass(frozen=True, slots=True, repr=False)
class StepWithoutGradients(IneffectiveCall):
    """Steps of an optimizer none of whose parameters has a gradient, as no backward reached them.

    `nodes` are theirs.
    """

    optimizer: str = ""
    count: int = 0  # of steps


@dataclass(frozen=True, slots=True, repr=False)
class EmptyParameterGroup(IneffectiveCall):
    """A group of an optimizer that has no parameters."""

    optimizer: str = ""
    group: int = 0
    groups: int = 0  # that the optimizer has


@dataclass(frozen=True, slots=True, repr=False)
class DecayedNorms(IneffectiveCall):
    """Biases and norms that decay, while another group is there for them. `nodes` are theirs."""

    optimizer: str = ""
    group: int = 0
    groups: int = 0  # that the optimizer has
    decay: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class VanishedEpsilon(IneffectiveCall):
    """An eps that is 0 in the dtype of some parameters: those of `nodes`."""

    optimizer: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class SharedParameters(IneffectiveCall):
    """Parameters that two optimizers hold that step. `nodes` are theirs."""

    optimizer: str = ""
    other: str = ""
    count: int = 0  # of parameters


@dataclass(frozen=True, slots=True, repr=False)
class ZeroLearningRate(IneffectiveCall):
    """Steps with a learning rate of 0, or below."""

    what: RateKind = "all"
    optimizer: str = ""
    group: int = 0
    groups: int = 0  # that the optimizer has
    count: int = 0  # of such steps
    steps: int = 0  # of the optimizer


@dataclass(frozen=True, slots=True, repr=False)
class ExtremeClipNorm(IneffectiveCall):
    """A bound that each gradient is cut to, or that none comes near."""

    function: str = ""  # "clip_grad_norm_"
    count: int = 0  # of gradients
    share: float = 0.0  # the median of what it leaves of a norm; above 1: that it could be longer


@dataclass(frozen=True, slots=True, repr=False)
class CallPerSample(IneffectiveCall):
    """A module that is called for each sample of a batch."""

    module: str = ""
    count: int = 0  # of calls


@dataclass(frozen=True, slots=True, repr=False)
class ReorderedView(IneffectiveCall):
    """A view of data with the same sizes in another order."""

    function: str = ""  # "view"
    before: tuple[int, ...] = ()  # sizes
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
