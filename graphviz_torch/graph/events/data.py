"""Events about batches, targets and tokens that a training uses."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from ..values import Operand
from .base import Occurrence
from .ineffective_calls import IneffectiveCall

# Cause of repeated batches:
# - "workers": workers have equal random states
# - "stream": each worker iterates over all data
# - "first": each step creates a new iterator, and uses its first batch
# - "twice": the dataset returns a batch twice in a row
# - "pass": a shuffled pass over the data repeats the previous pass
# - "persistent": persistent workers keep the dataset as it was when they started
RepeatKind = Literal["workers", "stream", "first", "twice", "pass", "persistent"]
# Problem of a loss: its targets are ignored, constant or out of range; its input is out of range;
# or the activation before the loss cannot return the targets.
TargetKind = Literal["ignored", "constant", "outside", "input", "unreachable"]
# Use of padding: a loss counts it, attention attends to it, or an inverted mask hides all other
# tokens.
PaddingUse = Literal["targets", "attended", "inverted"]


@immutable
class LossTarget(Occurrence):
    """A loss with wrong operands.

    Its targets are all ignored, are all of one class, or are out of range; or its input is out of
    range.
    """

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # class index of the target, or value of a constant target
    count: int = 0  # number of wrong targets; for ignored targets, number of calls of the loss
    among: int = 0  # number of all targets; for ignored targets, number of all calls


@immutable
class RepeatedBatch(IneffectiveCall):
    """Batches of a DataLoader that are equal to earlier batches."""

    what: RepeatKind = "workers"
    count: int = 0  # number of repeated batches; for "first", number of steps with the first batch
    among: int = 0  # number of all batches
    workers: int = 0  # number of worker processes
    seeded: str = ""  # line that calls manual_seed, if there is only one
    attribute: str = ""  # attribute of the dataset that the program changed: "epoch"


@immutable
class TokenShift(Occurrence):
    """Class targets that equal the embedded tokens, shifted by `lag` positions."""

    function: str = ""  # "cross_entropy"
    lag: int = 0  # 0 for unshifted targets, 1 for those of a language model
    length: int = 0  # number of tokens of each sequence
    only: bool = True  # True if the forward embedded no other batch of tokens
    attention: str = ""  # function that attends to all tokens, without a mask; "" if none
    attended: str = ""  # line of this attention


@immutable
class UsedPadding(Occurrence):
    """Padding of a batch of tokens that a loss counts as targets, or that attention attends to.

    `where` is the line of the call.
    """

    use: PaddingUse = "targets"
    function: str = ""  # "cross_entropy", "scaled_dot_product_attention"
    token: int = 0  # id of the padding token
    count: int = 0  # number of targets that are padding; for attention, of tokens
    among: int = 0  # number of all targets, or of all tokens
    embedded: str = ""  # line that embeds the tokens
