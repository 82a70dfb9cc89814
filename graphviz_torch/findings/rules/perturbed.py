"""Experiments: the forward runs again with one thing changed."""

from __future__ import annotations

from ..rule import described


@described("warning", "experiment")
def sample_leak() -> None:
    """The output of a sample changes when another sample of the batch does.

    ## Why it matters

    Samples of a batch are meant to be independent: a softmax or a norm over the batch, or a view
    that mixes the axes, makes the prediction for one sample depend on its neighbours.
    """


@described("warning", "experiment")
def future_leak() -> None:
    """An output changes when a later position does, though the model predicts the next position.

    ## Why it matters

    In training the model can read the answer from its input, so the loss falls far; when it
    generates, there is no later position to read. Usually a causal mask is missing.
    """


@described("warning", "experiment")
def target_shift() -> None:
    """The targets are the inputs, or the inputs shifted by more than one position.

    ## Why it matters

    With a shift of none the model learns to copy its input, with a shift of two it learns to skip a
    token. Both have a falling loss.
    """


@described("warning", "experiment")
def random_in_eval_mode() -> None:
    """In eval mode the output changes with the random seed.

    ## Why it matters

    A validation score then differs from run to run, and predictions are worse than they need to be:
    a dropout that ignores `model.eval()` is the usual cause.
    """


@described("info", "experiment")
def unused_input() -> None:
    """The output does not depend on an input: no operation uses the input.

    ## Why it matters

    A condition, a mask or a time step that was forgotten leaves the model without it.
    """


@described("warning", "experiment")
def input_without_effect() -> None:
    """Operations use an input, but the output is the same for other values.

    ## Why it matters

    The input is lost on its path, as in a saturated function or a multiplication by zero: the model
    cannot learn from it.
    """


@described("info", "experiment")
def sum_loss() -> None:
    """The loss doubles when the samples come twice: it is a sum, not a mean.

    ## Why it matters

    The length of a step then depends on the size of the batch, so that a smaller last batch makes
    a smaller step.
    """


@described("warning", "experiment")
def precision_loss() -> None:
    """An operation loses more than half of the digits of its dtype, and the output shows it.

    ## Why it matters

    The result is mostly rounding error, as where two large numbers are subtracted that are almost
    equal.
    """


@described("warning", "experiment")
def memory_order() -> None:
    """The output differs where an input is in another memory format, with the same values.

    ## Why it matters

    A `view` that should be a `reshape` or a `permute`, or a kernel that reads raw memory, computes
    something else for `channels_last` or transposed tensors.
    """


@described("warning", "experiment")
def compiled_differs() -> None:
    """The output of a compiled module differs from that of the same module in eager mode.

    ## Why it matters

    Numbers that were measured with one do not hold for the other.
    """
