"""Events about calls without the intended effect, and about parameter groups of an optimizer.

`optimizer`, `scheduler` and `name` are names of the caller's variables. `where` is the line of the
call; for an optimizer or a parameter group, `where` is the line of the optimizer step.
"""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from .base import Occurrence

# Argument of `backward` because of which the graph was kept.
RetainedBy = Literal["retain_graph", "create_graph"]
RecreatedKind = Literal["optimizer", "scheduler", "scaler"]
# Kind of learning rate: 0 in all parameter groups, 0 in one group, 0 in all groups since some step,
# or negative.
RateKind = Literal["all", "group", "end", "negative"]


@immutable
class IneffectiveCall(Occurrence):
    """The base of events about calls without the intended effect."""


@immutable
class FunctionalDropoutInEval(IneffectiveCall):
    """A call of a functional dropout that drops values in both train mode and eval mode."""

    function: str = ""  # "dropout"


@immutable
class UnneededRetainGraph(IneffectiveCall):
    """Backward passes that keep their graphs, although no later backward pass uses the graphs."""

    by: RetainedBy = "retain_graph"
    count: int = 0  # number of backward passes


@immutable
class SchedulerStepsTooOften(IneffectiveCall):
    """A learning rate scheduler that steps more often than its optimizer."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # number of scheduler steps
    steps: int = 0  # number of optimizer steps


@immutable
class SchedulerPastEnd(IneffectiveCall):
    """A cosine scheduler that runs past its end, where the learning rate rises again."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # number of scheduler steps
    end: int = 0  # T_max of the scheduler


@immutable
class UnusedScheduler(IneffectiveCall):
    """A learning rate scheduler whose optimizer never steps."""

    scheduler: str = ""
    count: int = 0  # number of scheduler steps


@immutable
class NeverSteppedScheduler(IneffectiveCall):
    """A learning rate scheduler that never stepped, although its optimizer did."""

    scheduler: str = ""
    optimizer: str = ""
    steps: int = 0  # number of optimizer steps
    assigned: str = ""  # line that assigns the scheduler


@immutable
class RestartedSchedule(IneffectiveCall):
    """A scheduler at its start, whose optimizer has loaded the state of an earlier training.

    `where` is the line that loads the optimizer's state.
    """

    scheduler: str = ""
    optimizer: str = ""
    assigned: str = ""  # line that assigns the scheduler


@immutable
class RecreatedObject(IneffectiveCall):
    """An optimizer, scheduler or scaler that is re-created and loses its state.

    An optimizer may be re-created for each step or each epoch, a scheduler or scaler for each step.
    """

    what: RecreatedKind = "optimizer"
    name: str = ""
    count: int = 0  # number of steps that began with a new object
    steps: int = 0  # number of all steps, if it is larger


@immutable
class StepWithoutGradients(IneffectiveCall):
    """Steps of an optimizer while none of its parameters has a gradient.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    count: int = 0  # number of steps


@immutable
class EmptyParameterGroup(IneffectiveCall):
    """A parameter group of an optimizer without parameters."""

    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer


@immutable
class DecayedNorms(IneffectiveCall):
    """Biases and norm weights in a parameter group with weight decay, while another has none.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer
    decay: float = 0.0  # weight decay of the group


@immutable
class VanishedEpsilon(IneffectiveCall):
    """An optimizer's eps that rounds to 0 in the dtype of some parameters.

    `nodes` are the ids of these parameters' nodes.
    """

    optimizer: str = ""
    epsilon: float = 0.0


@immutable
class SharedParameters(IneffectiveCall):
    """Parameters that are in two optimizers, both of which step.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    other: str = ""  # name of the other optimizer
    count: int = 0  # number of shared parameters


@immutable
class ZeroLearningRate(IneffectiveCall):
    """Optimizer steps with a learning rate of 0 or less."""

    what: RateKind = "all"
    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer
    count: int = 0  # number of steps with such a rate
    steps: int = 0  # number of all optimizer steps
    scheduler: str = ""  # the only scheduler of the optimizer; "" for none and several
    scheduled: str = ""  # line that calls the scheduler's `step`


@immutable
class ExtremeClipNorm(IneffectiveCall):
    """A maximum norm for gradient clipping that is far below or far above all gradient norms."""

    function: str = ""  # "clip_grad_norm_"
    count: int = 0  # number of gradient norms
    share: float = 0.0  # median of (maximum norm / gradient norm); above 1, clipping has no effect


@immutable
class CallPerSample(IneffectiveCall):
    """A module that is called separately for each sample of a batch."""

    module: str = ""
    count: int = 0  # number of calls


@immutable
class ReorderedView(IneffectiveCall):
    """A view with the shape of a transpose, although `view` keeps the order of the elements."""

    function: str = ""  # "view"
    before: tuple[int, ...] = ()  # shape of the operand
    after: tuple[int, ...] = ()  # shape of the view


AnyIneffectiveCall = (
    CallPerSample
    | ExtremeClipNorm
    | ReorderedView
    | DecayedNorms
    | EmptyParameterGroup
    | StepWithoutGradients
    | FunctionalDropoutInEval
    | ZeroLearningRate
    | NeverSteppedScheduler
    | RestartedSchedule
    | UnusedScheduler
    | RecreatedObject
    | UnneededRetainGraph
    | SchedulerPastEnd
    | SchedulerStepsTooOften
    | SharedParameters
    | VanishedEpsilon
)
