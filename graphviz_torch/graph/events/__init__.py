"""Events: facts about the program that no single node shows. Each kind of event has a class.

Every event contains the user's line, the ids of the nodes that it created or is about, and how
often the line caused it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..values import Operand
from .base import Occurrence
from .ineffective_calls import AnyIneffectiveCall
from .means import AnyMean

# Kinds of code that cause a graph break; "" for any other cause.
BreakingCall = Literal[
    "", "print", "log", "item", "branch", "shape", "backward", "recurrent", "limit", "asked"
]
ClipMoment = Literal[
    "in time",
    "before backward",
    "after the step",
    "while scaled",
    "before the average",
    "no parameters",
]
Holder = Literal["list", "dict", "forward", "outside", "variable"]
# Cause of repeated batches: workers with equal random states, workers that each iterate over all
# data, a new iterator for each step, a dataset that returns a batch twice in a row, or a shuffled
# pass that repeats the pass before.
RepeatKind = Literal["workers", "stream", "first", "twice", "pass"]
TargetKind = Literal[
    "ignored", "constant", "outside", "input"
]  # "input": the input is out of range
Origin = Literal["operation", "input", "parameter"]


@dataclass(frozen=True, slots=True, repr=False)
class SymmetricRows(Occurrence):
    """Weights whose rows all have equal values and get equal gradients.

    `nodes` are the ids of these weights' nodes.
    """


@dataclass(frozen=True, slots=True, repr=False)
class AttributeAssignment(Occurrence):
    """An assignment without effect: the attribute's name is a misspelling of requires_grad."""

    owner: str = ""  # "fc1", or "fc1.weight"
    attribute: str = ""  # "require_grad"


@dataclass(frozen=True, slots=True, repr=False)
class UnusedInWrapper(Occurrence):
    """An optimizer step while DistributedDataParallel waited for gradients that no backward
    produced.

    `where` is the line that called the wrapper's forward.
    """

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Broadcast(Occurrence):
    """Two operands of shapes (N, 1) and (N,), or (N, 1, 1) and (N, k); in a loss, (N, 1) and
    (N, k); or a matrix (N, N) and a reduction of its rows (N,).
    """

    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ConstantLoss(Occurrence):
    """A loss with the same value at every backward so far. `where` is the line of the backward."""

    value: float = 0.0
    count: int = 0  # number of backwards


@dataclass(frozen=True, slots=True, repr=False)
class ConstantTerm(Occurrence):
    """A constant that was added to a scalar with a gradient, and that no recorded operation
    computed.
    """

    constant: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CopiedValues(Occurrence):
    """A copy of a computed tensor's values into a parameter, through which no gradient flows."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class DataAssignment(Occurrence):
    """An assignment `x.data = h`: no gradient flows from x back to h."""

    label: str = ""  # the caller's name for x
    value: Operand | None = None  # h


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedForward(Occurrence):
    """Forwards at one line whose graphs were all freed before any backward ran through them.

    `where` is the outermost line of the call stack that runs only for these forwards.
    """

    module: str = ""  # path of the module; "" for the model
    count: int = 0  # number of forwards
    # True if a value computed from one of the forwards was read, detached or compared
    was_read: bool = False
    in_training: bool = True  # True if the module was in train mode


@dataclass(frozen=True, slots=True, repr=False)
class EarlySchedulerStep(Occurrence):
    """A step of a scheduler before the first step of its optimizer."""

    scheduler: str = ""  # the caller's name for it
    optimizer: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class EvalMode(Occurrence):
    """A forward in which every module with a train mode of its own, such as Dropout, was in eval
    mode.
    """

    module: str = ""  # path of the first module
    count: int = 1  # number of modules
    classes: tuple[str, ...] = ()  # distinct class names: "Dropout"


@dataclass(frozen=True, slots=True, repr=False)
class GradientClearing(Occurrence):
    """A call that cleared gradients before an optimizer step had used them."""

    by_optimizer: bool = (
        False  # True for the optimizer's zero_grad(), False for a module's or for other code
    )
    steps: int = 0  # optimizer steps so far in the run


@dataclass(frozen=True, slots=True, repr=False)
class GradientClip(Occurrence):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"


@dataclass(frozen=True, slots=True, repr=False)
class GradientRead(Occurrence):
    """A read of `.grad` on a non-leaf tensor, where `.grad` is None."""

    label: str = ""  # the caller's name for the tensor
    tensor: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Occurrence):
    """A graph break: code that torch.compile could not compile ended a compiled region."""

    reason: str = ""  # Dynamo's reason: "Dynamic shape operator"
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class LeafBackward(Occurrence):
    """A backward that started at a leaf. `where` is the line that created the leaf."""

    label: str = ""  # the caller's name for it
    maker: str = ""  # call that created the leaf: "requires_grad_"; "" if unknown


@dataclass(frozen=True, slots=True, repr=False)
class LossCall(Occurrence):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LossTarget(Occurrence):
    """Wrong operands of a loss: targets that are ignored, all of one class, or out of range; or an
    input out of range.
    """

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # class index, or the constant target value
    count: int = 0  # number of such targets; for ignored targets, number of calls
    among: int = 0  # number of all targets, or of all calls


@dataclass(frozen=True, slots=True, repr=False)
class MixedLosses(Occurrence):
    """A step of an optimizer with gradients of two losses, the first of which another optimizer had
    used already.

    `where` is the line of the first loss's backward; `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    through: bool = (
        False  # True if the second loss reaches parameters that the other optimizer stepped
    )
    second: str = ""  # line of the second backward
    stepped: str = ""  # line of the optimizer's step


@dataclass(frozen=True, slots=True, repr=False)
class NewLeaves(Occurrence):
    """Leaves that are no parameters, and that a backward reaches.

    `where` is the line that created them; `nodes` are those of the leaves.
    """

    maker: str = ""  # function that the line calls: "stack_module_state", "requires_grad_"


@dataclass(frozen=True, slots=True, repr=False)
class NonfiniteValue(Occurrence):
    """The first NaN or Inf of a forward. `where` is the line of the operation that produced the
    value.
    """

    operation: str = ""  # "log"; "" if unknown
    nan: int | None = 0  # number of NaN elements; None: at least one
    inf: int | None = 0
    # where the first NaN or Inf was found: in a result, an input or a parameter
    origin: Origin = "operation"
    reason: str = ""  # cause: "its divisor has 2 zeros"
    in_loss: bool = False  # True if the loss is NaN or Inf as well


@dataclass(frozen=True, slots=True, repr=False)
class OptimizerStep(Occurrence):
    """A step of an optimizer."""

    optimizer: str = ""  # the caller's name for it
    foreign: int = 0  # number of the optimizer's parameters that are not in the model
    # Learning rate of each parameter group at the last step; None if it is a tensor.
    learning_rates: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class OverwrittenWeights(Occurrence):
    """Copies that gave trained parameters other values between two optimizer steps."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class SelfCopy(Occurrence):
    """A copy of a trained parameter onto itself, which changes nothing."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class UsedPadding(Occurrence):
    """Padding of a batch of tokens that a loss counts as targets, or that attention attends to.

    `where` is the line of the call.
    """

    function: str = ""  # "cross_entropy", "scaled_dot_product_attention"
    token: int = 0  # the token that pads
    count: int = 0  # number of targets that are padding; for attention, of tokens
    among: int = 0  # number of all targets, or of all tokens
    embedded: str = ""  # line that embeds the tokens


@dataclass(frozen=True, slots=True, repr=False)
class ParameterFreeze(Occurrence):
    """An assignment of False to a parameter's requires_grad."""


@dataclass(frozen=True, slots=True, repr=False)
class Recompilation(Occurrence):
    """A second compilation of a function, because a guard of the compiled code failed.

    `where` is the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # number of earlier compilations


@dataclass(frozen=True, slots=True, repr=False)
class RedrawnDropout(Occurrence):
    """A module with dropout that backward ran again without the random state of the first run.

    `where` is the line of the checkpoint, or the line that runs the forward again; `nodes` is the
    node whose backward does so.
    """

    module: str = ""  # path of the dropout
    checkpoint: bool = False  # True if torch.utils.checkpoint ran it with preserve_rng_state=False


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedBatch(Occurrence):
    """Batches of a DataLoader that are equal to earlier batches."""

    what: RepeatKind = "workers"
    count: int = 0  # batches that another worker had returned, or steps that used the first batch
    among: int = 0  # number of all batches
    workers: int = 0
    seeded: str = ""  # the only line that calls manual_seed


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedForward(Occurrence):
    """Two calls of a module on the same values before one backward.

    `where` is the outermost line of the call stack that runs only for the second call.
    """

    module: str = ""
    first: str = ""  # the corresponding line of the first call


@dataclass(frozen=True, slots=True, repr=False)
class SelfDifference(Occurrence):
    """The difference or the quotient of a tensor and its own detached copy."""

    label: str = ""  # the caller's name for the tensor


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
    """Optimizer steps that changed none of the compared parameters, although each has a gradient.

    `where` is the line of the last backward.
    """

    backwards: int = 0
    steps: int = 0  # number of optimizer steps
    written_by: str = ""  # the operation that wrote into a parameter after a step: "copy_"
    written_where: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class UnchangedParameters(Occurrence):
    """Parameters with a gradient and a learning rate that the optimizer's steps did not change.

    `nodes` are the ids of the parameters' nodes.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # largest learning rate
    steps: int = 0  # number of steps that were checked
    share: float = 1.0  # fraction of the checked elements that stayed equal


@dataclass(frozen=True, slots=True, repr=False)
class UnregisteredParameters(Occurrence):
    """Parameters that the model uses, but that are not registered in any of its modules."""

    # Object that contains the parameters: a plain list or dict of the model, a layer created in
    # forward, a module outside of the model, or, for a single parameter, a variable of the program.
    holder: Holder = "outside"
    name: str = ""  # name of the holder


@dataclass(frozen=True, slots=True, repr=False)
class UnusedGradients(Occurrence):
    """A backward that gives gradients to the parameters of an optimizer that never stepped."""

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedGradients(Occurrence):
    """A backward whose gradients are always cleared before an optimizer step uses them."""


@dataclass(frozen=True, slots=True, repr=False)
class UnevenAccumulation(Occurrence):
    """Steps with gradients of more or fewer backwards than most. `where` is the backward's line."""

    usual: int = 0  # backwards in each of most steps
    backwards: int = 0  # backwards in each of the other steps
    count: int = 0  # number of the other steps
    stepped: str = ""  # line of the step


@dataclass(frozen=True, slots=True, repr=False)
class UnreadArgument(Occurrence):
    """An argument that a function of the program never reads: a tensor that forward got, or the
    gradient that the backward of a custom Function received.

    `nodes` are those of the Function; `where` is the line that calls forward.
    """

    owner: str = ""  # class of the module or the Function
    argument: str = ""
    gradient: bool = False
    defined: str = ""  # line of the backward


@dataclass(frozen=True, slots=True, repr=False)
class UnusedSum(Occurrence):
    """A sum of two losses through which no backward runs, although one runs through one of them."""

    used: Operand | None = None
    unused: Operand | None = None
    count: int = 0  # number of such sums


@dataclass(frozen=True, slots=True, repr=False)
class WrapperBypass(Occurrence):
    """A step with gradients of a forward that bypassed DistributedDataParallel.

    `where` is the line of that forward; `nodes` are the ids of the parameters' nodes.
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
    | NewLeaves
    | NonfiniteValue
    | OptimizerStep
    | OverwrittenWeights
    | ParameterFreeze
    | SelfCopy
    | Recompilation
    | RedrawnDropout
    | RepeatedBatch
    | RepeatedForward
    | SelfDifference
    | SkippedFunction
    | StalledTraining
    | SymmetricRows
    | UnchangedParameters
    | UnregisteredParameters
    | UnevenAccumulation
    | UnreadArgument
    | UnusedGradients
    | UnusedInWrapper
    | UsedPadding
    | UnusedSum
    | WrapperBypass
    | AnyIneffectiveCall
    | AnyMean
)
