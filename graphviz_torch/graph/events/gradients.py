"""Events about gradients that are cleared, clipped, read or unused."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from ..values import Operand
from .base import Occurrence

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
class DiscardedGradients(Occurrence):
    """A backward pass whose gradients are always cleared before an optimizer step uses them."""


@immutable
class GradientClearing(Occurrence):
    """A call that cleared gradients before an optimizer step used them."""

    # True for zero_grad() of the optimizer, False for zero_grad() of a module or for other code
    by_optimizer: bool = False
    steps: int = 0  # number of optimizer steps before the call, since the program began


@immutable
class GradientClip(Occurrence):
    """A call that clips gradients."""

    function: str = ""  # "clip_grad_norm_"
    moment: ClipMoment = "in time"  # when the call happened


@immutable
class GradientRead(Occurrence):
    """A read of the attribute `.grad` of a non-leaf tensor, which is None."""

    label: str = ""  # name of the caller's variable for the tensor
    tensor: Operand | None = None


@immutable
class UnusedGradients(Occurrence):
    """Gradients of parameters whose optimizer never stepped; `where` is the line of backward."""

    parameters: tuple[str, ...] = ()


@immutable
class WrongGradient(Occurrence):
    """A custom backward that returns another gradient than the derivative of its forward.

    `nodes` are the ids of the Function's nodes.
    """

    function: str = ""  # class of the Function
    arguments: tuple[str, ...] = ()  # arguments of forward whose gradient is wrong
    error: float = 0.0  # relative error of the worst gradient
    given: float = 0.0  # the element of this gradient that differs most, as backward returned it
    expected: float = 0.0  # the derivative by this element
    defined: str = ""  # line at which backward is defined


@immutable
class OverwrittenSavedTensor(Occurrence):
    """A tensor saved by a custom Function that changed before its backward, unseen by autograd.

    `where` is the line that saves the tensors; `nodes` are the ids of the Function's nodes.
    """

    function: str = ""  # class of the Function
    defined: str = ""  # line at which backward is defined
