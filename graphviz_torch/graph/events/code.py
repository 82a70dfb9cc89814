"""Events about results and names that the program does not use."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from .base import Occurrence

NameKind = Literal["variable", "function", "method"]


@immutable
class IgnoredResult(Occurrence):
    """A call whose result the program drops, although the call has no other effect."""

    call: str = ""  # "scores.masked_fill()"


@immutable
class ResultOnContext(Occurrence):
    """A custom Function that keeps its own result as an attribute of its context.

    `where` is the line that sets the attribute; `nodes` are the ids of the Function's nodes.
    """

    function: str = ""
    attribute: str = ""


@immutable
class UnusedName(Occurrence):
    """A function or variable of the script that nothing uses.

    `where` is the line of the definition, or of the assignment.
    """

    kind: NameKind = "variable"
    name: str = ""
    owner: str = ""  # variable with an instance of the method's class, or the class's name
    assigned: str = ""  # line that assigns this variable
