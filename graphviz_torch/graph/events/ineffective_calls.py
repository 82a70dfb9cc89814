"""Events about calls without the intended effect, and about parameter groups of an optimizer.

Objects are named by the caller's variables. `where` is the line of the call; for an optimizer or a
parameter group, `where` is the line of the optimizer's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Occurrence

# Argument of backward that made it keep the graph.
RetainedBy = Literal["retain_graph", "create_graph"]
RecreatedKind = Literal["optimizer", "scheduler", "scaler"]
# Kind of learning rate: 0 in all groups, 0 in one group, 0 in all groups from some step on, or
# negative.
RateKind = Literal["all", "group", "end", "negative"]


@dataclass(frozen=True, slots=True, repr=False)
class IneffectiveCall(Occurrence):
    """The base of events about calls without the intended effect."""


@dataclass(frozen=True, slots=True, repr=False)
class FunctionalDropoutInEval(IneffectiveCall):
    """A functional dropout that drops values in eval mode, since the same call drops in train mode
    too.
    """

    function: str = ""  # "dropout"


@dataclass(frozen=True, slots=True, repr=False)
class UnneededRetainGraph(IneffectiveCall):
    """Backwards at one line that keep their graphs, although no later backward uses these."""

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
    """A cosine scheduler that runs past its end, where the learning rate rises again."""

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
    """An optimizer, scheduler or scaler that is re-created for each step and loses its state."""

    what: RecreatedKind = "optimizer"
    name: str = ""
    count: int = 0  # number of steps


@dataclass(frozen=True, slots=True, repr=False)
class StepWithoutGradients(IneffectiveCall):
    """Steps of an optimizer although none of its parameters has a gradient.

    `nodes` are the ids of the parameters' nodes.
    """

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
    """Biases and weights of norm layers with weight decay, although another group has no decay.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    group: int = 0
    groups: int = 0  # number of groups of the optimizer
    decay: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class VanishedEpsilon(IneffectiveCall):
    """An optimizer's eps that rounds to 0 in the dtype of some parameters.

    `nodes` are the ids of these parameters' nodes.
    """

    optimizer: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class SharedParameters(IneffectiveCall):
    """Parameters that two optimizers share, both of which step.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    other: str = ""
    count: int = 0  # number of parameters


@dataclass(frozen=True, slots=True, repr=False)
class ZeroLearningRate(IneffectiveCall):
    """Optimizer steps with a learning rate of 0 or less."""

    what: RateKind = "all"
    optimizer: str = ""
    group: int = 0
    groups: int = 0  # number of groups of the optimizer
    count: int = 0  # number of steps with such a rate
    steps: int = 0  # optimizer steps


@dataclass(frozen=True, slots=True, repr=False)
class ExtremeClipNorm(IneffectiveCall):
    """A bound of gradient clipping that is far below or far above every gradient norm."""

    function: str = ""  # "clip_grad_norm_"
    count: int = 0  # number of gradients
    share: float = 0.0  # median of bound / norm; above 1 the bound has no effect


@dataclass(frozen=True, slots=True, repr=False)
class CallPerSample(IneffectiveCall):
    """A module that is called once for each sample of a batch."""

    module: str = ""
    count: int = 0  # number of calls


@dataclass(frozen=True, slots=True, repr=False)
class ReorderedView(IneffectiveCall):
    """A view with the shape of a transpose, although `view` keeps the order of the elements."""

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
