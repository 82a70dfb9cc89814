"""Find means over values that a mask has set to zero, and means over unequal numbers of targets.

The mean of `loss * mask` divides by the number of all values, so each value that the mask keeps
counts less, the more values the mask drops. The numbers of zeros in masks are computed on the
mask's device and read at the end of the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...findings.rules.means import MeanOverMaskedValues
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe
from ...internals.tensors.saved_tensors import saved_value
from ...tracing.nodes import GradFn, sources_of
from ..listener import Listener
from ..program import Program
from ..program.events import NodeLine

_MAX_MEANS = 64  # maximum number of means to check in one step
_PASSES = ("NegBackward0", "ViewBackward0", "SqueezeBackward1", "UnsqueezeBackward0")
_MAX_NODES = 4  # maximum number of nodes between the mask and the mean


@mutable
class _CheckedMean:
    """A mean of masked values, and counts of the mask's values, which are still on a device."""

    place: CodePosition | None
    number: int  # sequence number of the node of the mean
    masked: int  # sequence number of the node that applied the mask
    numbers: Probe  # number of zeros, and number of values that are neither 0 nor 1, in the mask
    among: int  # number of elements of the mask


class MaskedMeans(Listener):
    """Listener that reports the mean of values that were multiplied with a mask."""

    needs = ("every_call",)
    functions = frozenset((torch.mean, TensorBase.mean))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._means: list[_CheckedMean] = []

    def on_call_end(self, event: Called) -> None:
        given = event.args[0] if event.args else None
        result = event.result
        if not isinstance(given, Tensor) or given.grad_fn is None or result.grad_fn is None:
            return
        if len(self._means) >= _MAX_MEANS or TensorBase.dim(result) > 1:
            return
        found = _mask_before(given.grad_fn)
        if found is None:
            return
        fn, mask = found
        numbers = probe(_count, mask)
        if numbers is not None:
            place = self.program.place(event.frame)
            number, masked = int(result.grad_fn._sequence_nr()), int(fn._sequence_nr())
            self._means.append(_CheckedMean(place, number, masked, numbers, TensorBase.numel(mask)))

    def on_step_end(self, event: None) -> None:
        self._means = []

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        means, self._means = self._means, []
        for each, row in zip(means, fetch([each.numbers for each in means]), strict=True):
            if row and 0 < row[0] < each.among and not row[1]:
                self.events.note(
                    MeanOverMaskedValues(),
                    each.place,
                    [each.number],
                    masked=NodeLine(each.masked),
                    zeros=row[0],
                    among=each.among,
                )

    def close(self) -> None:
        self._means = []


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
