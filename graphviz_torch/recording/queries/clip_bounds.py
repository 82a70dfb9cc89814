"""Find bounds of clipping functions that are far below, or far above, all gradients.

`clip_grad_norm_` and `clip_grads_with_norm_` compute the ratio bound / norm and clamp it at 1, so
the calls of clamp show the ratio. For `clip_grad_value_` the bound is compared with the largest and
the mean absolute value of the gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from statistics import median
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from ...findings.rules.clipping import ExtremeClipNorm
from ...graph.events import GradientClip
from ...graph.immutable import NamedTuple
from ...internals.frames import (
    CodePosition,
    clipping_frame,
    clipping_function,
    frame_variables,
)
from ...internals.functions import FOREACH_CLAMP_MIN, TensorBase
from ...internals.hooks.calls import Called, Calling
from ...internals.probes import Probe, probe
from ..program import Program
from ..program.log import Found, Query, RowsOf

_CLIP_GRAD_FILE = clip_grad.__file__
_MIN_CLIPS = 5  # a line with fewer clipping calls is not reported
_MAX_CLIPS = 64  # number of latest ratios that are kept for a line
# A line is reported if the median of its ratios bound / norm is below the first number, or if all
# of its ratios are above the second number.
_LOW, _HIGH = 0.1, 100.0


class ClipRatioRow(NamedTuple):
    """A call that clips gradients."""

    place: CodePosition | None
    function: str
    # The ratio bound / norm; for clip_grad_value_, bound / largest and bound / mean absolute value.
    ratios: Probe


def values_before_clip(event: Calling, program: Program) -> Iterable[ClipRatioRow]:
    """Return a row if `clip_grad_value_` is about to clip gradients."""
    if event.func is not FOREACH_CLAMP_MIN or event.frame.f_code.co_filename != _CLIP_GRAD_FILE:
        return ()
    grads, bound = event.args
    found = probe(partial(_ratios, -bound), *grads)
    row = program.place(event.frame), clipping_function(event.frame)
    return () if found is None else (ClipRatioRow(*row, found),)


def clipped_norms(event: Called, program: Program) -> Iterable[ClipRatioRow | Found]:
    """Return a row if a function that clips the norm has computed the ratio, or a norm of 0."""
    if event.func is FOREACH_CLAMP_MIN or event.frame.f_code.co_filename != _CLIP_GRAD_FILE:
        return ()
    row = program.place(event.frame), clipping_function(event.frame)
    if event.func is torch.tensor:  # clip_grad_norm_ found no gradients, and returns a new 0
        frame = clipping_frame(event.frame)
        parameters = None if frame is None else frame_variables(frame, "parameters")[0]
        is_empty = isinstance(parameters, list) and not parameters
        clip = GradientClip(function=row[1], moment="no parameters")
        return (Found(clip, row[0]),) if is_empty else ()
    # The argument of clamp is the ratio, a temporary tensor of clip_grad_norm_.
    found = probe(TensorBase.detach, event.args[0])
    return () if found is None else (ClipRatioRow(*row, found),)


class ClipBounds(Query):
    """Find bounds that are far below, or far above, all gradient norms."""

    functions = frozenset((torch.clamp, torch.tensor, FOREACH_CLAMP_MIN))
    rows_of: ClassVar[RowsOf] = {
        "on_call_start": values_before_clip,
        "on_call_end": clipped_norms,
    }

    def __init__(self) -> None:
        # For each line and clipping function: the ratios of the bound to the largest value, or to
        # the norm, and to the mean, or to the norm.
        self._ratios: dict[tuple[CodePosition | None, str], deque[tuple[float, float]]] = (
            defaultdict(lambda: deque(maxlen=_MAX_CLIPS))
        )

    def on_clip_ratio(self, row: ClipRatioRow) -> None:
        ratios = row.ratios.values or ()
        if len(ratios) == 1 or (ratios and all(map(math.isfinite, ratios))):
            self._ratios[row.place, row.function].append((ratios[0], ratios[-1]))

    def events_of_run(self) -> Iterator[Found]:
        for (place, name), pairs in self._ratios.items():
            high, low = [largest for largest, _ in pairs], [mean for _, mean in pairs]
            share = None
            if len(low) >= _MIN_CLIPS and max(low) < 1 and median(low) < _LOW:
                share = median(low)
            elif len(high) >= _MIN_CLIPS and min(high) > _HIGH:
                share = median(high)
            if share is not None:
                latest = {"count": len(pairs), "share": share}
                yield Found(ExtremeClipNorm(function=name), place, latest=latest)


def _ratios(bound: float, *gradients: Tensor) -> Tensor:
    """Return the bound divided by the largest, and by the mean absolute value of the gradients."""
    norm = torch.linalg.vector_norm
    largest = torch.stack([norm(each, math.inf, dtype=torch.float32) for each in gradients])
    total = torch.stack([norm(each, 1, dtype=torch.float32) for each in gradients]).sum()
    mean = total / sum(map(TensorBase.numel, gradients))
    return bound / torch.stack([largest.max(), mean])
