"""Events about forwards that repeat, that no backward uses, or that ignore an argument."""

from __future__ import annotations

from ..immutable import immutable
from .base import Occurrence


@immutable
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


@immutable
class ReferenceForward(Occurrence):
    """Calls of a module without gradients that repeat its calls with gradients.

    Arguments and weights are the same. `where` is the outermost line by which the call stack of the
    call without gradients differs from that of the other call.
    """

    module: str = ""  # path of the module; "" for the model
    first: str = ""  # the corresponding line in the call stack of the call with gradients
    steps: int = 0  # number of optimizer steps with such calls


@immutable
class RepeatedForward(Occurrence):
    """Two calls of a module with the same arguments before one backward pass.

    `where` is the outermost line by which the call stack of the second call differs from that of
    the first call.
    """

    module: str = ""
    first: str = ""  # the corresponding line in the call stack of the first call


@immutable
class RetainedForward(Occurrence):
    """Forwards of earlier steps that a variable keeps although no backward ran through them.

    `where` is the line that appends the results, or the line that calls the module.
    """

    module: str = ""  # path of the module; "" for the model
    label: str = ""  # name of the variable
    steps: int = 0
    made: str = ""  # line that calls the module


@immutable
class UnreadArgument(Occurrence):
    """An argument that a function of the program never reads.

    The argument is a tensor passed to forward, or a gradient passed to the backward of a custom
    Function. `where` is the line that calls forward; `nodes` are the ids of the Function's nodes.
    """

    owner: str = ""  # class of the module or the Function
    argument: str = ""  # name of the argument
    gradient: bool = False  # True if the argument is a gradient
    defined: str = ""  # line at which backward is defined


@immutable
class UnusedModule(Occurrence):
    """A module that ran, and whose parameters no backward reached.

    `where` is the line that calls the module.
    """

    module: str = ""  # path of the module
