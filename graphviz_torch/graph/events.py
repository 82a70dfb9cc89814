"""Events: facts about the program that no single node shows. Each kind of event has a class.

The events here are facts of healthy programs, too, or are read below the rules. An event that is a
fault is declared in the file of its rule, in `findings/rules/`.
"""

from __future__ import annotations

from typing import Literal

from .ids import NodeId
from .immutable import immutable
from .registry import load_events
from .text import short_repr
from .values import Operand

# Classes of events by name. Saved files contain these names.
CLASSES: dict[str, type[Event]] = {}

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


@immutable
class Event:
    """The base of all events: line, nodes and count."""

    where: str = ""  # source line in the user's code
    nodes: tuple[NodeId, ...] = ()  # ids of the nodes that the event concerns
    times: int = 1  # number of times that the event happened at this line

    __repr__ = short_repr

    def __init_subclass__(cls) -> None:
        CLASSES[cls.__name__] = cls


def event_class(name: str) -> type[Event] | None:
    """Return the class of events with a name, also if a rule declares it; None for another name."""
    if name not in CLASSES:
        load_events()
    return CLASSES.get(name)


@immutable
class IneffectiveCall(Event):
    """The base of events about calls without the intended effect.

    `optimizer`, `scheduler` and `name` are names of the caller's variables. `where` is the line of
    the call; for an optimizer or a parameter group, `where` is the line of the optimizer step.
    """


@immutable
class AccumulatedBackwards(Event):
    """Steps that all use the gradients of the same number of backwards, two or more.

    `where` is the line that calls backward; the last backward of a step began at the `nodes`.
    """

    backwards: int = 0  # number of backwards in each step
    steps: int = 0
    stepped: str = ""  # line of the optimizer step


@immutable
class CopiedValues(Event):
    """A copy of computed values into a parameter. No gradient flows back through such a copy."""

    operation: str = ""  # "load_state_dict", "copy_"


@immutable
class GradientClearing(Event):
    """A call that cleared gradients before an optimizer step used them."""

    # True for zero_grad() of the optimizer, False for zero_grad() of a module or for other code
    by_optimizer: bool = False
    steps: int = 0  # number of optimizer steps before the call, since the program began


@immutable
class GradientClip(Event):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"  # when the call happened


@immutable
class GraphBreak(Event):
    """A graph break: a compiled region ended at code that torch.compile could not compile."""

    reason: str = ""  # Dynamo's reason: "Dynamic shape operator"
    call: BreakingCall = ""


@immutable
class LeafBackward(Event):
    """A backward pass that started at a leaf. `where` is the line that created the leaf."""

    label: str = ""  # name of the caller's variable for the leaf
    maker: str = ""  # function that created the leaf: "requires_grad_"; "" if unknown


@immutable
class LossCall(Event):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@immutable
class NewLeaves(Event):
    """Leaves that are not parameters of the model, but get gradients from a backward pass.

    `where` is the line that created the leaves; `nodes` are the ids of their nodes.
    """

    maker: str = ""  # function that created the leaves: "stack_module_state", "requires_grad_"


@immutable
class OptimizerStep(Event):
    """A step of an optimizer."""

    optimizer: str = ""  # name of the caller's variable
    foreign: int = 0  # number of the optimizer's parameters that are not in the model
    # Learning rate of each parameter group at the last step; None if it is a tensor.
    learning_rates: tuple[float | None, ...] = ()
    maximizes: bool = False  # True for an optimizer with maximize=True


@immutable
class ParameterFreeze(Event):
    """An assignment of False to `requires_grad` of a parameter."""


@immutable
class TokenShift(Event):
    """Class targets that equal the embedded tokens, shifted by `lag` positions."""

    function: str = ""  # "cross_entropy"
    lag: int = 0  # 0 for unshifted targets, 1 for those of a language model
    length: int = 0  # number of tokens of each sequence
    only: bool = True  # True if the forward embedded no other batch of tokens
    attention: str = ""  # function that attends to all tokens, without a mask; "" if none
    attended: str = ""  # line of this attention
