"""What the program did that no node shows: a type for each kind of it.

All have the user's line, the nodes that the event made or is about, and how often that line did so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..values import Operand
from .base import Occurrence
from .ineffective_calls import AnyIneffectiveCall

# What ends a compiled region; "" for anything else.
BreakingCall = Literal[
    "", "print", "log", "item", "branch", "shape", "backward", "recurrent", "limit", "asked"
]
ClipMoment = Literal[
    "in time", "before backward", "after the step", "while scaled", "before the average"
]
Holder = Literal["list", "dict", "forward", "outside", "variable"]
# Workers that draw the same, or each go through all of the data; a new iterator for each step.
RepeatKind = Literal["workers", "stream", "first"]
TargetKind = Literal["ignored", "constant", "outside", "input"]  # the last: no target
Origin = Literal["operation", "input", "parameter"]


@dataclass(frozen=True, slots=True, repr=False)
class SymmetricRows(Occurrence):
    """All rows of some weights have the same values, and get the same gradients.

    `nodes` are those of the weights.
    """


@dataclass(frozen=True, slots=True, repr=False)
class AttributeAssignment(Occurrence):
    """An attribute of a module or parameter that looks like requires_grad, and does nothing."""

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
    """Two operands of shapes (N, 1) and (N,); or, of a loss, (N, 1) and (N, k)."""

    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ConstantTerm(Occurrence):
    """A number that nothing computed was added to one that has a gradient."""

    constant: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class DataAssignment(Occurrence):
    """`x.data = h`, which parts h from what made it."""

    label: str = ""  # what the caller calls x
    value: Operand | None = None  # h


@dataclass(frozen=True, slots=True, repr=False)
class EarlySchedulerStep(Occurrence):
    """A scheduler stepped before its optimizer had stepped once."""

    scheduler: str = ""  # what the caller calls it
    optimizer: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class EvalMode(Occurrence):
    """Modules that behave otherwise in training were all in eval mode."""

    module: str = ""  # path of the first
    count: int = 1  # how many there are
    classes: tuple[str, ...] = ()  # "Dropout", each once


@dataclass(frozen=True, slots=True, repr=False)
class GradientClearing(Occurrence):
    """Gradients were cleared that no step had used."""

    by_optimizer: bool = False  # by its zero_grad(); else by a module's, or by hand
    steps: int = 0  # that optimizers had made until then, in the whole run


@dataclass(frozen=True, slots=True, repr=False)
class GradientClip(Occurrence):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"


@dataclass(frozen=True, slots=True, repr=False)
class GradientRead(Occurrence):
    """A read of the `.grad` of a tensor that is not a leaf: it is None."""

    label: str = ""  # what the caller calls the tensor
    tensor: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Occurrence):
    """A compiled region ended, and another began behind it: something could not be compiled."""

    reason: str = ""  # in dynamo's words: "Dynamic shape operator"
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class LeafBackward(Occurrence):
    """Backward started from a leaf. `where` is the line that made it."""

    label: str = ""  # what the caller calls it
    maker: str = ""  # what made it a leaf: "requires_grad_"; "" where that is not known


@dataclass(frozen=True, slots=True, repr=False)
class LossCall(Occurrence):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LossTarget(Occurrence):
    """Targets that a loss ignores, that are all one class, or that it does not take; or its input,
    where it does not take that."""

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # of the class, or the number that is to be met
    count: int = 0  # targets that are so; of ignored ones: calls, each with all its targets
    among: int = 0  # targets, or calls


@dataclass(frozen=True, slots=True, repr=False)
class MixedLosses(Occurrence):
    """An optimizer stepped with what two losses gave, and another one had stepped for the first.

    `where` is the line of the first backward, `nodes` are those of the parameters.
    """

    optimizer: str = ""
    through: bool = False  # does the second loss reach what the other one had stepped with
    second: str = ""  # the line of the second backward
    stepped: str = ""  # and of the step


@dataclass(frozen=True, slots=True, repr=False)
class NonfiniteValue(Occurrence):
    """The first NaN or Inf of a forward. `where` is the line of the operation that made it."""

    operation: str = ""  # "log"; "" where it is not known which one made it
    nan: int | None = 0  # how many; None: some
    inf: int | None = 0
    origin: Origin = "operation"  # what was not finite first
    reason: str = ""  # in words: "its divisor has 2 zeros"
    in_loss: bool = False  # is the loss NaN or Inf too


@dataclass(frozen=True, slots=True, repr=False)
class OptimizerStep(Occurrence):
    """An optimizer stepped."""

    optimizer: str = ""  # what the caller calls it
    foreign: int = 0  # how many parameters it holds that the model does not
    # Of each group of its parameters, at the last step; None where it is a tensor.
    learning_rates: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ParameterFreeze(Occurrence):
    """The requires_grad of a parameter was set to False."""


@dataclass(frozen=True, slots=True, repr=False)
class Recompilation(Occurrence):
    """A function was compiled once more: a guard of what had been compiled did not hold.

    `where` is the line at which the function begins.
    """

    function: str = ""  # "forward"
    reason: str = ""  # in dynamo's words: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # how often it was compiled before


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedBatch(Occurrence):
    """A DataLoader gave batches that are equal to others."""

    what: RepeatKind = "workers"
    count: int = 0  # batches that another worker had given; or steps with the first batch
    among: int = 0  # batches that came
    workers: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class SkippedFunction(Occurrence):
    """A function that torch.compile leaves to Python, for it can neither compile it nor break it.

    `where` is the line at which it could not go on; that at which the function begins where that is
    not known.
    """

    function: str = ""  # "forward"
    reason: str = ""  # in dynamo's words; "" where it was skipped before the recording
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class UnchangedParameters(Occurrence):
    """An optimizer's steps left parameters as they were, though they have a gradient and a rate.

    `nodes` are those of the parameters.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # the largest
    steps: int = 0  # that were looked at
    share: float = 1.0  # of the elements that were looked at


@dataclass(frozen=True, slots=True, repr=False)
class UnregisteredParameters(Occurrence):
    """Parameters of what ran inside the model, which does not own them."""

    # What has them: a plain list of the model, a layer made in forward, a module that is not in the
    # model; "variable": it is one parameter, and a variable of the program.
    holder: Holder = "outside"
    name: str = ""  # of that


@dataclass(frozen=True, slots=True, repr=False)
class UnusedGradients(Occurrence):
    """A backward for parameters of an optimizer that never stepped."""

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedGradients(Occurrence):
    """A backward whose gradients are cleared each time, before any step has used them."""


@dataclass(frozen=True, slots=True, repr=False)
class WrapperBypass(Occurrence):
    """An optimizer stepped with gradients of a forward that went past DistributedDataParallel.

    `where` is the line of that forward, `nodes` are those of the parameters.
    """

    wrapper: str = ""  # what the caller calls it


Event = (
    SymmetricRows
    | AttributeAssignment
    | UnusedInWrapper
    | Broadcast
    | ConstantTerm
    | DataAssignment
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
    | SkippedFunction
    | UnchangedParameters
    | UnregisteredParameters
    | UnusedGradients
    | DiscardedGradients
    | WrapperBypass
    | AnyIneffectiveCall
)
