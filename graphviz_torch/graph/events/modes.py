"""Events about forwards in train or eval mode, and dropout."""

from __future__ import annotations

from ..immutable import immutable
from .base import Occurrence


@immutable
class DropoutSwitchedOff(Occurrence):
    """A dropout whose probability is 0 in training, although it was larger in earlier steps.

    `where` is the line that sets the probability, or else the line of the dropout.
    """

    function: str = ""  # "dropout"
    rate: float = 0.0  # the earlier probability
    attribute: str = ""  # attribute that contains the probability; "" if unknown
    called: str = ""  # line of the dropout


@immutable
class EvalMode(Occurrence):
    """A forward with all modules in eval mode that behave differently in train mode.

    Such modules are, for example, Dropout and BatchNorm.
    """

    module: str = ""  # path of the first of these modules
    count: int = 1  # number of these modules
    classes: tuple[str, ...] = ()  # their distinct class names: "Dropout"


@immutable
class RedrawnDropout(Occurrence):
    """A dropout that drew another mask when a backward pass ran its forward again.

    The random state of the first forward was not restored. `where` is the line that calls the
    checkpoint, or that runs the forward again; `nodes` is the id of the node whose backward runs
    the forward again.
    """

    module: str = ""  # path of the dropout module
    # True if torch.utils.checkpoint ran the forward again, with preserve_rng_state=False
    checkpoint: bool = False


@immutable
class TrainModeForward(Occurrence):
    """Forwards without gradients of a module in train mode, with active dropout or batch norm."""

    module: str = ""  # path of the module; "" for the model
    active: tuple[str, ...] = ()  # "dropout", "batch norm"
    frozen: bool = False  # True if no parameter of the module requires a gradient
    count: int = 0  # number of forwards
    layers: int = 0  # number of frozen batch norm layers of a forward with gradients
