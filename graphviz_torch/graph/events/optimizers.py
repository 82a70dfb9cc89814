"""Events about optimizers, their steps, and the parameters that they update."""

from __future__ import annotations

from ..immutable import immutable
from .base import Occurrence


@immutable
class CopiedValues(Occurrence):
    """A copy of computed values into a parameter. No gradient flows back through such a copy."""

    operation: str = ""  # "load_state_dict", "copy_"


@immutable
class EarlySchedulerStep(Occurrence):
    """A step of a learning rate scheduler before the first step of its optimizer."""

    scheduler: str = ""  # name of the caller's variable
    optimizer: str = ""


@immutable
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


@immutable
class OptimizerStep(Occurrence):
    """A step of an optimizer."""

    optimizer: str = ""  # name of the caller's variable
    foreign: int = 0  # number of the optimizer's parameters that are not in the model
    # Learning rate of each parameter group at the last step; None if it is a tensor.
    learning_rates: tuple[float | None, ...] = ()
    maximizes: bool = False  # True for an optimizer with maximize=True


@immutable
class OverwrittenWeights(Occurrence):
    """Copies that gave trained parameters other values between two optimizer steps."""

    operation: str = ""  # "load_state_dict", "copy_"


@immutable
class ParameterFreeze(Occurrence):
    """An assignment of False to `requires_grad` of a parameter."""


@immutable
class SelfCopy(Occurrence):
    """A copy of a trained parameter onto itself, which changes nothing."""

    operation: str = ""  # "load_state_dict", "copy_"


@immutable
class StaleBuffers(Occurrence):
    """An averaged model whose parameters the program changes, while its buffers keep their values.

    `where` is the line that changes the parameters.
    """

    module: str = ""
    count: int = 0  # number of assignments to a parameter


@immutable
class StalledTraining(Occurrence):
    """Optimizer steps that changed no parameter that was compared, although each had a gradient.

    `where` is the line of the last backward pass.
    """

    backwards: int = 0  # number of backward passes
    steps: int = 0  # number of optimizer steps
    written_by: str = ""  # operation that wrote into a parameter after a step: "copy_"
    written_where: str = ""  # line of this operation


@immutable
class SymmetricRows(Occurrence):
    """Weights in which all rows have equal values and get equal gradients.

    `nodes` are the ids of the weights' nodes.
    """


@immutable
class UnchangedParameters(Occurrence):
    """Parameters that optimizer steps did not change, despite a gradient and a learning rate.

    `nodes` are the ids of the parameters' nodes.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # largest learning rate
    steps: int = 0  # number of steps that were checked
    share: float = 1.0  # fraction of the checked elements that the steps did not change


@immutable
class UnevenAccumulation(Occurrence):
    """Optimizer steps that accumulate the gradients of an unusual number of backward passes.

    `where` is the line that calls backward.
    """

    usual: int = 0  # number of backward passes before most steps
    backwards: int = 0  # number of backward passes before the unusual steps
    count: int = 0  # number of unusual steps
    stepped: str = ""  # line of the optimizer step
