"""Events about losses that are averaged over another number of values than intended."""

from __future__ import annotations

from ..immutable import immutable
from .base import Occurrence


@immutable
class AccumulatedBackwards(Occurrence):
    """Steps that all use the gradients of the same number of backwards, two or more.

    `where` is the line that calls backward; the last backward of a step began at the `nodes`.
    """

    backwards: int = 0  # number of backwards in each step
    steps: int = 0
    stepped: str = ""  # line of the optimizer step


@immutable
class MaskedMean(Occurrence):
    """A mean over values, some of which a mask of zeros and ones has set to zero.

    `where` is the line of the mean.
    """

    masked: str = ""  # line that applied the mask
    zeros: int = 0
    among: int = 0  # number of values in the mask


@immutable
class UnequalMeans(Occurrence):
    """Calls of a loss before one step that average over very different numbers of targets.

    Each call has its own backward.
    """

    function: str = ""  # "cross_entropy"
    calls: int = 0
    least: int = 0  # smallest number of targets that one call averages
    most: int = 0


AnyMean = AccumulatedBackwards | MaskedMean | UnequalMeans
