"""Events about values that are not finite."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from .base import Occurrence

Origin = Literal["operation", "input", "parameter"]


@immutable
class NonfiniteValue(Occurrence):
    """The first NaN or Inf of a forward. `where` is the line of the operation that computed it."""

    operation: str = ""  # "log"; "" if unknown
    nan: int | None = 0  # number of NaN elements; None if at least one
    inf: int | None = 0  # number of Inf elements; None if at least one
    # whether the first NaN or Inf was in the operation's result, in an input or in a parameter
    origin: Origin = "operation"
    reason: str = ""  # cause: "its divisor has 2 zeros"
    in_loss: bool = False  # True if the loss is NaN or Inf as well
