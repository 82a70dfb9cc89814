"""Events: facts about the program that no single node shows. Each kind of event has a class.

Every event contains a source line of the user's code, the ids of the nodes that it concerns, and
the number of times that it happened at this line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..values import Operand
from .base import Occurrence
from .ineffective_calls import AnyIneffectiveCall, IneffectiveCall
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
    "each backward",
]
Holder = Literal["list", "dict", "attribute", "forward", "outside", "variable"]
# Cause of repeated batches:
# - "workers": workers have equal random states
# - "stream": each worker iterates over all data
# - "first": each step creates a new iterator, and uses its first batch
# - "twice": the dataset returns a batch twice in a row
# - "pass": a shuffled pass over the data repeats the previous pass
# - "persistent": persistent workers keep the dataset as it was when they started
RepeatKind = Literal["workers", "stream", "first", "twice", "pass", "persistent"]
# Problem of a loss: its targets are ignored, constant or out of range; its input is out of range;
# or the activation before the loss cannot return the targets.
TargetKind = Literal["ignored", "constant", "outside", "input", "unreachable"]
# Use of padding: a loss counts it, attention attends to it, or an inverted mask hides all other
# tokens.
PaddingUse = Literal["targets", "attended", "inverted"]
NameKind = Literal["variable", "function", "method"]
Origin = Literal["operation", "input", "parameter"]


@dataclass(frozen=True, slots=True, repr=False)
class StaleBuffers(Occurrence):
    """An averaged model whose parameters the program changes, while its buffers keep their values.

    `where` is the line that changes the parameters.
    """

    module: str = ""
    count: int = 0  # number of assignments to a parameter


@dataclass(frozen=True, slots=True, repr=False)
class SymmetricRows(Occurrence):
    """Weights in which all rows have equal values and get equal gradients.

    `nodes` are the ids of the weights' nodes.
    """


@dataclass(frozen=True, slots=True, repr=False)
class AttributeAssignment(Occurrence):
    """An assignment without effect: the attribute's name is a misspelling of requires_grad."""

    owner: str = ""  # "fc1", or "fc1.weight"
    attribute: str = ""  # "require_grad"


@dataclass(frozen=True, slots=True, repr=False)
class UnusedModule(Occurrence):
    """A module that ran, and whose parameters no backward reached.

    `where` is the line that calls the module.
    """

    module: str = ""  # path of the module


@dataclass(frozen=True, slots=True, repr=False)
class UnusedInWrapper(Occurrence):
    """An optimizer step while DistributedDataParallel waited for gradients.

    No backward produced these gradients. `where` is the line that called the wrapper's forward.
    """

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Broadcast(Occurrence):
    """Two operands whose shapes broadcast, probably by accident.

    The shapes are (N, 1) and (N,); (N, 1, 1) and (N, k); in a loss, (N, 1) and (N, k); or (N, N)
    and (N,), if the vector is a reduction of the matrix's rows.
    """

    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ConstantLoss(Occurrence):
    """A loss with the same value in every backward pass so far.

    `where` is the line that calls backward.
    """

    value: float = 0.0
    count: int = 0  # number of backward passes


@dataclass(frozen=True, slots=True, repr=False)
class ConstantTerm(Occurrence):
    """An addition of a constant to a scalar with a grad_fn.

    No recorded operation computed the constant.
    """

    constant: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CopiedValues(Occurrence):
    """A copy of computed values into a parameter. No gradient flows back through such a copy."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class DataAssignment(Occurrence):
    """An assignment `x.data = h`: no gradient flows from x back to h."""

    label: str = ""  # name of the caller's variable x
    value: Operand | None = None  # h


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedForward(Occurrence):
    """Calls of forward whose graphs were all freed before any backward pass used them.

    `where` is the line that calls the module. If a forward that was used has the same line, `where`
    is the outermost line by which the call stacks differ.
    """

    module: str = ""  # path of the module; "" for the model
    count: int = 0  # number of calls of forward
    # True if a value computed from a result of these calls was read, detached or compared
    was_read: bool = False
    in_training: bool = True  # True if the module was in train mode


@dataclass(frozen=True, slots=True, repr=False)
class DropoutSwitchedOff(Occurrence):
    """A dropout whose probability is 0 in training, although it was larger in earlier steps.

    `where` is the line that sets the probability, or else the line of the dropout.
    """

    function: str = ""  # "dropout"
    rate: float = 0.0  # the earlier probability
    attribute: str = ""  # attribute that contains the probability; "" if unknown
    called: str = ""  # line of the dropout


@dataclass(frozen=True, slots=True, repr=False)
class IgnoredResult(Occurrence):
    """A call whose result the program drops, although the call has no other effect."""

    call: str = ""  # "scores.masked_fill()"


@dataclass(frozen=True, slots=True, repr=False)
class EarlySchedulerStep(Occurrence):
    """A step of a learning rate scheduler before the first step of its optimizer."""

    scheduler: str = ""  # name of the caller's variable
    optimizer: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class EvalMode(Occurrence):
    """A forward with all modules in eval mode that behave differently in train mode.

    Such modules are, for example, Dropout and BatchNorm.
    """

    module: str = ""  # path of the first of these modules
    count: int = 1  # number of these modules
    classes: tuple[str, ...] = ()  # their distinct class names: "Dropout"


@dataclass(frozen=True, slots=True, repr=False)
class GradientClearing(Occurrence):
    """A call that cleared gradients before an optimizer step used them."""

    # True for zero_grad() of the optimizer, False for zero_grad() of a module or for other code
    by_optimizer: bool = False
    steps: int = 0  # number of optimizer steps before the call, since the program began


@dataclass(frozen=True, slots=True, repr=False)
class GradientClip(Occurrence):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"  # when the call happened


@dataclass(frozen=True, slots=True, repr=False)
class GradientRead(Occurrence):
    """A read of the attribute `.grad` of a non-leaf tensor, which is None."""

    label: str = ""  # name of the caller's variable for the tensor
    tensor: Operand | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Occurrence):
    """A graph break: a compiled region ended at code that torch.compile could not compile."""

    reason: str = ""  # Dynamo's reason: "Dynamic shape operator"
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class RetainedForward(Occurrence):
    """Forwards of earlier steps that a variable keeps although no backward ran through them.

    `where` is the line that appends the results, or the line that calls the module.
    """

    module: str = ""  # path of the module; "" for the model
    label: str = ""  # name of the variable
    steps: int = 0
    made: str = ""  # line that calls the module


@dataclass(frozen=True, slots=True, repr=False)
class LeafBackward(Occurrence):
    """A backward pass that started at a leaf. `where` is the line that created the leaf."""

    label: str = ""  # name of the caller's variable for the leaf
    maker: str = ""  # function that created the leaf: "requires_grad_"; "" if unknown


@dataclass(frozen=True, slots=True, repr=False)
class LossCall(Occurrence):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LossTarget(Occurrence):
    """A loss with wrong operands.

    Its targets are all ignored, are all of one class, or are out of range; or its input is out of
    range.
    """

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # class index of the target, or value of a constant target
    count: int = 0  # number of wrong targets; for ignored targets, number of calls of the loss
    among: int = 0  # number of all targets; for ignored targets, number of all calls


@dataclass(frozen=True, slots=True, repr=False)
class MixedLosses(Occurrence):
    """An optimizer step with the sum of the gradients of two losses.

    After the backward pass of the first loss, another optimizer stepped. `where` is the line of
    this backward pass; `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    # True if the second loss reaches parameters that the other optimizer stepped
    through: bool = False
    second: str = ""  # line of the second backward pass
    stepped: str = ""  # line of the optimizer step


@dataclass(frozen=True, slots=True, repr=False)
class NewLeaves(Occurrence):
    """Leaves that are not parameters of the model, but get gradients from a backward pass.

    `where` is the line that created the leaves; `nodes` are the ids of their nodes.
    """

    maker: str = ""  # function that created the leaves: "stack_module_state", "requires_grad_"


@dataclass(frozen=True, slots=True, repr=False)
class NonfiniteValue(Occurrence):
    """The first NaN or Inf of a forward. `where` is the line of the operation that computed it."""

    operation: str = ""  # "log"; "" if unknown
    nan: int | None = 0  # number of NaN elements; None if at least one
    inf: int | None = 0  # number of Inf elements; None if at least one
    # whether the first NaN or Inf was in the operation's result, in an input or in a parameter
    origin: Origin = "operation"
    reason: str = ""  # cause: "its divisor has 2 zeros"
    in_loss: bool = False  # True if the loss is NaN or Inf as well


@dataclass(frozen=True, slots=True, repr=False)
class OptimizerStep(Occurrence):
    """A step of an optimizer."""

    optimizer: str = ""  # name of the caller's variable
    foreign: int = 0  # number of the optimizer's parameters that are not in the model
    # Learning rate of each parameter group at the last step; None if it is a tensor.
    learning_rates: tuple[float | None, ...] = ()
    maximizes: bool = False  # True for an optimizer with maximize=True


@dataclass(frozen=True, slots=True, repr=False)
class OverwrittenWeights(Occurrence):
    """Copies that gave trained parameters other values between two optimizer steps."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class SelfCopy(Occurrence):
    """A copy of a trained parameter onto itself, which changes nothing."""

    operation: str = ""  # "load_state_dict", "copy_"


@dataclass(frozen=True, slots=True, repr=False)
class TokenShift(Occurrence):
    """Class targets that equal the embedded tokens, shifted by `lag` positions."""

    function: str = ""  # "cross_entropy"
    lag: int = 0  # 0 for unshifted targets, 1 for those of a language model
    length: int = 0  # number of tokens of each sequence
    only: bool = True  # True if the forward embedded no other batch of tokens
    attention: str = ""  # function that attends to all tokens, without a mask; "" if none
    attended: str = ""  # line of this attention


@dataclass(frozen=True, slots=True, repr=False)
class UsedPadding(Occurrence):
    """Padding of a batch of tokens that a loss counts as targets, or that attention attends to.

    `where` is the line of the call.
    """

    use: PaddingUse = "targets"
    function: str = ""  # "cross_entropy", "scaled_dot_product_attention"
    token: int = 0  # id of the padding token
    count: int = 0  # number of targets that are padding; for attention, of tokens
    among: int = 0  # number of all targets, or of all tokens
    embedded: str = ""  # line that embeds the tokens


@dataclass(frozen=True, slots=True, repr=False)
class ParameterFreeze(Occurrence):
    """An assignment of False to `requires_grad` of a parameter."""


@dataclass(frozen=True, slots=True, repr=False)
class Recompilation(Occurrence):
    """A recompilation of a function, because a guard of the compiled code failed.

    `where` is the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # number of earlier compilations


@dataclass(frozen=True, slots=True, repr=False)
class RedrawnDropout(Occurrence):
    """A dropout that drew another mask when a backward pass ran its forward again.

    The random state of the first forward was not restored. `where` is the line that calls the
    checkpoint, or that runs the forward again; `nodes` is the id of the node whose backward runs
    the forward again.
    """

    module: str = ""  # path of the dropout module
    # True if torch.utils.checkpoint ran the forward again, with preserve_rng_state=False
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedBatch(IneffectiveCall):
    """Batches of a DataLoader that are equal to earlier batches."""

    what: RepeatKind = "workers"
    count: int = 0  # number of repeated batches; for "first", number of steps with the first batch
    among: int = 0  # number of all batches
    workers: int = 0  # number of worker processes
    seeded: str = ""  # line that calls manual_seed, if there is only one
    attribute: str = ""  # attribute of the dataset that the program changed: "epoch"


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedLayer(Occurrence):
    """A list of modules that contains one module several times.

    `where` is the line that creates the list.
    """

    container: str = ""  # path of the list
    count: int = 0  # number of times that the list contains the module
    layer: str = ""  # class of the module


@dataclass(frozen=True, slots=True, repr=False)
class RepeatedForward(Occurrence):
    """Two calls of a module with the same arguments before one backward pass.

    `where` is the outermost line by which the call stack of the second call differs from that of
    the first call.
    """

    module: str = ""
    first: str = ""  # the corresponding line in the call stack of the first call


@dataclass(frozen=True, slots=True, repr=False)
class ResultOnContext(Occurrence):
    """A custom Function that keeps its own result as an attribute of its context.

    `where` is the line that sets the attribute; `nodes` are the ids of the Function's nodes.
    """

    function: str = ""
    attribute: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class SelfDifference(Occurrence):
    """The difference or the quotient of a tensor and its own detached copy."""

    label: str = ""  # name of the caller's variable for the tensor


@dataclass(frozen=True, slots=True, repr=False)
class SkippedFunction(Occurrence):
    """A function that torch.compile runs uncompiled.

    torch.compile could neither compile the function nor continue after a graph break in it. `where`
    is the line at which compilation stopped, or the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason; "" if the function was skipped before the recording
    call: BreakingCall = ""


@dataclass(frozen=True, slots=True, repr=False)
class StalledTraining(Occurrence):
    """Optimizer steps that changed no parameter that was compared, although each had a gradient.

    `where` is the line of the last backward pass.
    """

    backwards: int = 0  # number of backward passes
    steps: int = 0  # number of optimizer steps
    written_by: str = ""  # operation that wrote into a parameter after a step: "copy_"
    written_where: str = ""  # line of this operation


@dataclass(frozen=True, slots=True, repr=False)
class TrainModeForward(Occurrence):
    """Forwards without gradients of a module in train mode, with active dropout or batch norm."""

    module: str = ""  # path of the module; "" for the model
    active: tuple[str, ...] = ()  # "dropout", "batch norm"
    frozen: bool = False  # True if no parameter of the module requires a gradient
    count: int = 0  # number of forwards
    layers: int = 0  # number of frozen batch norm layers of a forward with gradients


@dataclass(frozen=True, slots=True, repr=False)
class UnchangingTerm(Occurrence):
    """A term of the loss that has the same value in several steps.

    `where` is the line of the sum.
    """

    term: Operand | None = None
    value: float = 0.0
    count: int = 0  # number of steps


@dataclass(frozen=True, slots=True, repr=False)
class UnchangedParameters(Occurrence):
    """Parameters that optimizer steps did not change, despite a gradient and a learning rate.

    `nodes` are the ids of the parameters' nodes.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # largest learning rate
    steps: int = 0  # number of steps that were checked
    share: float = 1.0  # fraction of the checked elements that the steps did not change


@dataclass(frozen=True, slots=True, repr=False)
class UnregisteredParameters(Occurrence):
    """Parameters that the model uses, but that are not registered in any of its modules."""

    # Where the parameters are: in a plain list or dict of the model, in a layer created in forward,
    # in a module outside of the model, or (a single parameter) in a variable of the program; or,
    # for a tensor that is not an nn.Parameter, in an attribute of a module.
    holder: Holder = "outside"
    name: str = ""  # name of this object


@dataclass(frozen=True, slots=True, repr=False)
class UnusedGradients(Occurrence):
    """Gradients of parameters whose optimizer never stepped; `where` is the line of backward."""

    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class DiscardedGradients(Occurrence):
    """A backward pass whose gradients are always cleared before an optimizer step uses them."""


@dataclass(frozen=True, slots=True, repr=False)
class UnevenAccumulation(Occurrence):
    """Optimizer steps that accumulate the gradients of an unusual number of backward passes.

    `where` is the line that calls backward.
    """

    usual: int = 0  # number of backward passes before most steps
    backwards: int = 0  # number of backward passes before the unusual steps
    count: int = 0  # number of unusual steps
    stepped: str = ""  # line of the optimizer step


@dataclass(frozen=True, slots=True, repr=False)
class UnreadArgument(Occurrence):
    """An argument that a function of the program never reads.

    The argument is a tensor passed to forward, or a gradient passed to the backward of a custom
    Function. `where` is the line that calls forward; `nodes` are the ids of the Function's nodes.
    """

    owner: str = ""  # class of the module or the Function
    argument: str = ""  # name of the argument
    gradient: bool = False  # True if the argument is a gradient
    defined: str = ""  # line at which backward is defined


@dataclass(frozen=True, slots=True, repr=False)
class UnusedName(Occurrence):
    """A function or variable of the script that nothing uses.

    `where` is the line of the definition, or of the assignment.
    """

    kind: NameKind = "variable"
    name: str = ""
    owner: str = ""  # variable with an instance of the method's class, or the class's name
    assigned: str = ""  # line that assigns this variable


@dataclass(frozen=True, slots=True, repr=False)
class UnusedSum(Occurrence):
    """A sum of two losses that no backward uses, although a backward uses one of the losses."""

    used: Operand | None = None
    unused: Operand | None = None
    count: int = 0  # number of such sums


@dataclass(frozen=True, slots=True, repr=False)
class WrapperBypass(Occurrence):
    """An optimizer step with gradients of a forward that bypassed DistributedDataParallel.

    `where` is the line that calls the forward; `nodes` are the ids of the parameters' nodes.
    """

    wrapper: str = ""  # name of the caller's variable for the DistributedDataParallel module


Event = (
    AttributeAssignment
    | Broadcast
    | ConstantLoss
    | ConstantTerm
    | CopiedValues
    | DataAssignment
    | DiscardedForward
    | DiscardedGradients
    | DropoutSwitchedOff
    | IgnoredResult
    | EarlySchedulerStep
    | EvalMode
    | GradientClearing
    | GradientClip
    | GradientRead
    | GraphBreak
    | RetainedForward
    | LeafBackward
    | LossCall
    | LossTarget
    | MixedLosses
    | NewLeaves
    | NonfiniteValue
    | OptimizerStep
    | OverwrittenWeights
    | ParameterFreeze
    | ResultOnContext
    | SelfCopy
    | Recompilation
    | RedrawnDropout
    | RepeatedBatch
    | RepeatedForward
    | RepeatedLayer
    | SelfDifference
    | SkippedFunction
    | StaleBuffers
    | StalledTraining
    | SymmetricRows
    | TokenShift
    | TrainModeForward
    | UnchangedParameters
    | UnchangingTerm
    | UnregisteredParameters
    | UnevenAccumulation
    | UnreadArgument
    | UnusedGradients
    | UnusedInWrapper
    | UnusedModule
    | UnusedName
    | UsedPadding
    | UnusedSum
    | WrapperBypass
    | AnyIneffectiveCall
    | AnyMean
)
