"""Events about losses, their operands and their terms."""

from __future__ import annotations

from ..immutable import immutable
from ..values import Operand
from .base import Occurrence


@immutable
class Broadcast(Occurrence):
    """Two operands whose shapes broadcast, probably by accident.

    The shapes are (N, 1) and (N,); (N, 1, 1) and (N, k); in a loss, (N, 1) and (N, k); or (N, N)
    and (N,), if the vector is a reduction of the matrix's rows.
    """

    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()


@immutable
class ConstantLoss(Occurrence):
    """A loss with the same value in every backward pass so far.

    `where` is the line that calls backward.
    """

    value: float = 0.0
    count: int = 0  # number of backward passes


@immutable
class ConstantTerm(Occurrence):
    """An addition of a constant to a scalar with a grad_fn.

    No recorded operation computed the constant.
    """

    constant: Operand | None = None


@immutable
class LossCall(Occurrence):
    """A call of a loss function."""

    function: str = ""  # "kl_div"
    operands: tuple[Operand, ...] = ()


@immutable
class SelfDifference(Occurrence):
    """The difference or the quotient of a tensor and its own detached copy."""

    label: str = ""  # name of the caller's variable for the tensor


@immutable
class UnchangingTerm(Occurrence):
    """A term of the loss that has the same value in several steps.

    `where` is the line of the sum.
    """

    term: Operand | None = None
    value: float = 0.0
    count: int = 0  # number of steps


@immutable
class UnusedSum(Occurrence):
    """A sum of two losses that no backward uses, although a backward uses one of the losses."""

    used: Operand | None = None
    unused: Operand | None = None
    count: int = 0  # number of such sums
