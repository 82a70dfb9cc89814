"""Find means over values that a mask has set to zero, and means over unequal numbers of targets.

The mean of `loss * mask` divides by the number of all values, so each value that the mask keeps
counts less, the more values the mask drops. The numbers of zeros in masks are computed on the
mask's device and read at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ...findings.rules.means import MeanOverMaskedValues
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, probe
from ...internals.tensors.metadata import saved_value
from ...tracing.nodes import GradFn, sources_of
from ..program import Program
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf

_PASSES = ("NegBackward0", "ViewBackward0", "SqueezeBackward1", "UnsqueezeBackward0")
_MAX_NODES = 4  # maximum number of nodes between the mask and the mean


class MaskedMeanRow(NamedTuple):
    """A mean of values that were multiplied with a constant, which may be a mask."""

    place: CodePosition | None
    number: int  # sequence number of the node of the mean
    masked: int  # sequence number of the node that applied the mask
    numbers: Probe  # number of zeros, and number of values that are neither 0 nor 1, in the mask
    among: int  # number of elements of the mask


def masked_means(event: Called, program: Program) -> Iterable[MaskedMeanRow]:
    """Return the row of a mean, if its values were multiplied with a constant."""
    given, result = event.args[0] if event.args else None, event.result
    if not isinstance(given, Tensor) or given.grad_fn is None or result.grad_fn is None:
        return ()
    found = None if TensorBase.dim(result) > 1 else _mask_before(given.grad_fn)
    number = int(result.grad_fn._sequence_nr())
    if found is None or not program.log.admits(MaskedMeanRow):
        return ()
    fn, mask = found
    numbers, masked = probe(_count, mask), int(fn._sequence_nr())
    if numbers is None:
        return ()
    place = program.place(event.frame)
    return (MaskedMeanRow(place, number, masked, numbers, TensorBase.numel(mask)),)


class MaskedMeans(Query):
    """Find means of values that were multiplied with a mask."""

    functions = frozenset((torch.mean, TensorBase.mean))
    rows_of: ClassVar[RowsOf] = {"on_call_end": masked_means}

    def on_masked_mean(self, row: MaskedMeanRow) -> Iterator[Found]:
        zeros, others = row.numbers.values or (0, 0)
        if 0 < zeros < row.among and not others:
            latest = {"masked": NodeLine(row.masked), "zeros": zeros, "among": row.among}
            yield Found(MeanOverMaskedValues(), row.place, (row.number,), latest=latest)


def _mask_before(fn: GradFn) -> tuple[GradFn, Tensor] | None:
    """Return the node that multiplied the values of `fn` with a constant, and this constant."""
    for _ in range(_MAX_NODES):
        name = fn.name()
        if name == "MulBackward0":
            # A product saves an operand if the other one requires a gradient.
            saved = [saved_value(fn, operand) for operand in ("self", "other")]
            constants = [each for each in saved if each is not None]
            return (fn, constants[0]) if len(constants) == 1 else None
        before = sources_of(fn)
        if name not in _PASSES or len(before) != 1:
            return None
        fn = before[0]
    return None


def _count(mask: Tensor) -> Tensor:
    """Return [number of zeros, number of values that are neither 0 nor 1] of a mask."""
    zeros, ones = torch.sum(torch.eq(mask, 0)), torch.sum(torch.eq(mask, 1))
    return torch.stack((zeros, torch.rsub(torch.add(zeros, ones), TensorBase.numel(mask))))
