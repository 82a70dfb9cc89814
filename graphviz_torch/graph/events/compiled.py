"""Events about regions of torch.compile."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from .base import Occurrence

# Kinds of code that cause a graph break; "" for any other cause.
BreakingCall = Literal[
    "", "print", "log", "item", "branch", "shape", "backward", "recurrent", "limit", "asked"
]


@immutable
class GraphBreak(Occurrence):
    """A graph break: a compiled region ended at code that torch.compile could not compile."""

    reason: str = ""  # Dynamo's reason: "Dynamic shape operator"
    call: BreakingCall = ""


@immutable
class Recompilation(Occurrence):
    """A recompilation of a function, because a guard of the compiled code failed.

    `where` is the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # number of earlier compilations


@immutable
class SkippedFunction(Occurrence):
    """A function that torch.compile runs uncompiled.

    torch.compile could neither compile the function nor continue after a graph break in it. `where`
    is the line at which compilation stopped, or the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason; "" if the function was skipped before the recording
    call: BreakingCall = ""
