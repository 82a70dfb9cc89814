"""Whole trainings: `watch` compares each step with the steps before it."""

from __future__ import annotations

from ..rule import described


@described("error", "watch")
def nonfinite_loss() -> None:
    """The loss is NaN or Inf, and an optimizer is about to step with its gradients.

    ## Why it matters

    One step with such gradients makes every parameter NaN, and nothing can be learned after it.
    `watch` runs the model again on the same batch and names the first operation whose result is
    not finite.
    """


@described("warning", "watch")
def no_gradient() -> None:
    """A parameter that an optimizer holds had no gradient, or only zeros, in 20 steps in a row.

    ## Why it matters

    The parameter keeps its first values while the rest of the model is trained around them.
    """


@described("warning", "watch")
def gradient_spike() -> None:
    """The norm of the gradients is ten times the largest norm of the 50 steps before.

    ## Why it matters

    One such step can undo thousands of steps. A bad batch, a learning rate that is too high or
    gradients that were not unscaled are common causes.
    """


@described("warning", "watch")
def large_update() -> None:
    """A step changed a weight by more than a tenth of its norm, in three samples in a row.

    ## Why it matters

    A healthy step changes weights by about a thousandth of their norm: larger ones forget what was
    learned.
    """


@described("warning", "watch")
def growing_memory() -> None:
    """The memory in use grew in each of eight samples in a row, by more than 64 MiB.

    ## Why it matters

    The training will end with an out-of-memory error, often hours later and far from the cause.
    """


@described("warning", "watch")
def learning_rate_jump() -> None:
    """The learning rate of an optimizer is far above the largest that it had before.

    ## Why it matters

    The next steps change weights by as much more: the loss grows, and can become NaN.
    """


@described("error", "watch")
def replaced_parameters() -> None:
    """The model has other parameters than those that its optimizer holds.

    ## Why it matters

    The optimizer updates tensors that the model does not use any more, as after `model.to(dtype)`
    with a new head, or a module that was assigned after the optimizer was made: the new
    parameters never change.
    """


@described("warning", "watch")
def stale_average() -> None:
    """A moving average of the weights has not changed, though the weights have.

    ## Why it matters

    An evaluation with the averaged weights judges the model as it was at the beginning.
    """


@described("warning", "watch")
def collapsed_weight() -> None:
    """The norm of a weight is less than a thousandth of what it was.

    ## Why it matters

    A layer whose weights are almost zero passes on almost nothing: weight decay that is too strong,
    or a loss that it minimises best by computing nothing, are common causes.
    """
