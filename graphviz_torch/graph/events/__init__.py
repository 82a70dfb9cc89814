"""Events: facts about the program that no node shows, with one class per kind.

Each event has the user's line, the nodes that it created or concerns, and the number of times that
the line caused it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..values import Operand
from .base import Occurrence
from .ineffective_calls import AnyIneffectiveCall

# Code that causes a graph break; "" for anything else.
BreakingCall = Literal[
    "", "print", "log", "item", "branch", "shape", "backward", "recurrent", "limit", "asked"
]
ClipMoment = Literal[
    "in time", "before backward", "after the step", "while scaled", "before the average"
]
Holder = Literal["list", "dict", "forward", "outside", "variable"]
# Workers with equal random states, workers that each iterate over all data, or a new iterator for
# each step.
RepeatKind = Literal["workers", "stream", "first"]
TargetKind = Literal[
    "ignored", "constant", "outside", "input"
]  # "input": the input is out of range
Origin = Literal["operation", "input", "parameter"]


@dataclass(frozen=True, slots=True, repr=False)
class SymmetricRows(Occurrence):
    """All rows of some weights have equal values and get equal gradients.

    `nodes` are those of the weights.
    """


@dataclass(frozen=True, slots=True, repr=False)
class AttributeAssignment(Occurrence):
    """An attribute set on a module or parameter that looks like requires_grad and does nothing."""

    owner: str = ""  # "fc1", or "fc1.weight"
    attribute: str = ""  # "require_grad"


@dataclass(frozen=True, slots=True, repr=False)
class UnusedInWrapper(Occurrence):
    """An optimizer stepped while DistributedDataParallel waited for gradients that did not come.

    `where` is the line of its forward.
    """

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Broadcast(Occurrence):
    """Two operands of shapes (N, 1) and (N,); or, in a loss, (N, 1) and (N, k)."""

    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ConstantLoss(Occurrence):
    """A loss that had one value at every backward so far. `where` is the line of the backward."""

    value: float = 0.0
    count: int = 0  # number of backwards


@dataclass(frozen=True, slots=True, repr=False)
class ConstantTerm(Occurrence):
    """A constant added to a scalar with a gradient; no recorded operation computed the constant."""

    constant: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CopiedValues(Occurrence):
    """The values of a tensor with a history were copied into a parameter without gradients."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class DataAssignment(Occurrence):
    """An assignment `x.data = h`, which separates h from its history."""

    label: str = ""  # the caller's name for x
    value: Operand | None = None  # h


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedForward(Occurrence):
    """Forwards of one line whose graphs were freed, and no backward had run through any of them.

    `where` is the outermost line that leads to these forwards alone.
    """

    module: str = ""  # path of the module; "" for the model
    count: int = 0  # number of forwards
    was_read: bool = False  # True if a value computed from one was read, detached or compared
    in_training: bool = True  # True if the module was in train mode


@dataclass(frozen=True, slots=True, repr=False)
class EarlySchedulerStep(Occurrence):
    """A scheduler stepped before its optimizer had stepped once."""

    scheduler: str = ""  # the caller's name for it
    optimizer: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class EvalMode(Occurrence):
    """All modules that behave differently in training were in eval mode."""

    module: str = ""  # path of the first module
    count: int = 1  # number of modules
    classes: tuple[str, ...] = ()  # distinct class names: "Dropout"


@dataclass(frozen=True, slots=True, repr=False)
class GradientClearing(Occurrence):
    """Gradients were cleared before any step had used them."""

    by_optimizer: bool = (
        False  # cleared by the optimizer's zero_grad(); else by a module's, or by hand
    )
    steps: int = 0  # optimizer steps so far in the run


@dataclass(frozen=True, slots=True, repr=False)
class GradientClip(Occurrence):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"


@dataclass(frozen=True, slots=True, repr=False)
class GradientRead(Occurrence):
    """A read of the `.grad` of a non-leaf tensor, which is None."""

    label: str = ""  # the caller's name for the tensor
    tensor: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Occurrence):
    """A graph break: a compiled region ended at code that could not be compiled."""

    reason: str = ""  # Dynamo's reason: "Dynamic shape operator"
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class LeafBackward(Occurrence):
    """Backward started from a leaf. `where` is the line that created the leaf."""

    label: str = ""  # the caller's name for it
    maker: str = ""  # call that made it a leaf: "requires_grad_"; "" if unknown


@dataclass(frozen=True, slots=True, repr=False)
class LossCall(Occurrence):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LossTarget(Occurrence):
    """Targets that a loss ignores, that are all one class, or that are out of range; or an input
    out of range.
    """

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # class index, or the constant target value
    count: int = 0  # number of such targets; for ignored targets, of calls
    among: int = 0  # out of so many targets, or calls


@dataclass(frozen=True, slots=True, repr=False)
class MixedLosses(Occurrence):
    """An optimizer stepped with gradients of two losses, though another optimizer had stepped for
    the first.

    `where` is the line of the first backward; `nodes` are those of the parameters.
    """

    optimizer: str = ""
    through: bool = (
        False  # True if the second loss reaches parameters that the other optimizer stepped
    )
    second: str = ""  # line of the second backward
    stepped: str = ""  # line of the step


@dataclass(frozen=True, slots=True, repr=False)
class NonfiniteValue(Occurrence):
    """The first NaN or Inf of a forward. `where` is the line of the operation that produced it."""

    operation: str = ""  # "log"; "" if unknown
    nan: int | None = 0  # number of NaN elements; None: at least one
    inf: int | None = 0
    origin: Origin = "operation"  # kind of the first tensor that was not finite
    reason: str = ""  # cause: "its divisor has 2 zeros"
    in_loss: bool = False  # the loss is NaN or Inf as well


@dataclass(frozen=True, slots=True, repr=False)
class OptimizerStep(Occurrence):
    """A step of an optimizer."""

    optimizer: str = ""  # the caller's name for it
    foreign: int = 0  # number of its parameters that the model does not have
    # Learning rate of each parameter group at the last step; None if it is a tensor.
    learning_rates: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ParameterFreeze(Occurrence):
    """requires_grad of a parameter was set to False."""


@dataclass(frozen=True, slots=True, repr=False)
class Recompilation(Occurrence):
    """A function was compiled again, because a guard of its compiled code failed.

    `where` is the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # number of earlier compilations


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedBatch(Occurrence):
    """A DataLoader returned batches that are equal to earlier ones."""

    what: RepeatKind = "workers"
    count: int = 0  # batches that another worker had returned; or steps with the first batch
    among: int = 0  # batches in all
    workers: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedForward(Occurrence):
    """A module ran twice on the same values before one backward.

    `where` is the outermost line that leads to the second forward alone.
    """

    module: str = ""
    first: str = ""  # the same line of the first forward


@dataclass(frozen=True, slots=True, repr=False)
class SkippedFunction(Occurrence):
    """A function that torch.compile runs in Python, because it can neither compile it nor break its
    graph. `where` is the line at which compilation stopped, or the function's first line.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason; "" if it was skipped before the recording
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class StalledTraining(Occurrence):
    """No parameter changed since the first backward, although all that were compared have a
    gradient. `where` is the line of the last backward.
    """

    backwards: int = 0
    steps: int = 0  # number of optimizer steps
    written_by: str = ""  # the operation that wrote into a parameter after a step: "copy_"
    written_where: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class UnchangedParameters(Occurrence):
    """Parameters that an optimizer's steps left unchanged, though they have a gradient and a
    learning rate.

    `nodes` are those of the parameters.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # largest learning rate
    steps: int = 0  # steps that were checked
    share: float = 1.0  # fraction of the checked elements that stayed equal


@dataclass(frozen=True, slots=True, repr=False)
class UnregisteredParameters(Occurrence):
    """Parameters used inside the model that no module of the model owns."""

    # Holder of the parameters: a plain list or dict of the model, a layer created in forward, a
    # module outside of the model, or (one parameter) a variable of the program.
    holder: Holder = "outside"
    name: str = ""  # name of the holder


@dataclass(frozen=True, slots=True, repr=False)
class UnusedGradients(Occurrence):
    """A backward that gives gradients to the parameters of an optimizer that never stepped."""

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedGradients(Occurrence):
    """A backward whose gradients are cleared each time, before any step uses them."""


@dataclass(frozen=True, slots=True, repr=False)
class WrapperBypass(Occurrence):
    """An optimizer stepped with gradients of a forward that bypassed DistributedDataParallel.

    `where` is the line of that forward; `nodes` are those of the parameters.
    """

    wrapper: str = ""  # the caller's name for it


Event = (
    AttributeAssignment
    | Broadcast
    | ConstantLoss
    | ConstantTerm
    | CopiedValues
    | DataAssignment
    | DiscardedForward
    | DiscardedGradients
    | EarlySchedulerStep
    | EvalMode
    | GradientClearing
    | GradientClip
    | GradientRead
    | GraphBreak
    | LeafBackward
    | LossCall
    | LossTarget
    | MixedLosses
    | NonfiniteValue
    | OptimizerStep
    | ParameterFreeze
    | Recompilation
    | RepeatedBatch
    | RepeatedForward
    | SkippedFunction
    | StalledTraining
    | SymmetricRows
    | UnchangedParameters
    | UnregisteredParameters
    | UnusedGradients
    | UnusedInWrapper
    | WrapperBypass
    | AnyIneffectiveCall
)
