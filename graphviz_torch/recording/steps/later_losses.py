"""Find the step from which on a loss is NaN or infinite, after the last recorded step.

Each loss on which the program calls backward is checked. On a CPU its value is read. On other
devices a number on the device keeps the step at which the last values that are not finite began,
and it is read when the program has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import FrameType

import torch
from torch import Tensor

from ...findings.rules.watched import NonfiniteLoss
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.engine import EngineCalled
from ...internals.hooks.optimizers import parameters_of
from ...internals.probes import Probe, fetch, unobserved
from ...internals.tensors.memory import may_be_read
from ..backward import Backward
from ..listener import BackwardBegan, Listener
from ..program import Program

_MAX_LINES = 64
_MAX_SEARCHES = 4  # number of times that parameters are searched for NaN
NEVER = 1 << 62  # greater than the number of any step


@mutable
class _LossesOfLine:
    """The losses for which one source line calls backward.

    `since` is the step from which on all of them were NaN or infinite; None if the last was finite.
    """

    since: int | None = None
    value: float = math.nan  # the first of these values
    spoilt: bool | None = None  # True if a parameter was NaN before this step; None if unknown
    on_device: Tensor | None = None  # `since` on another device, where `NEVER` means None


def since_on_device(since: Tensor | None, loss: Tensor, step: int) -> Tensor:
    """Return the step from which on the losses are not finite, as a tensor on their device.

    Args:
        since: the result for the loss before; None for the first loss.
        loss: a loss.
        step: number of the loss's step.
    """
    if since is None or since.device != loss.device:
        since = torch.full((), NEVER, dtype=torch.int64, device=loss.device)
    loss = TensorBase.reshape(loss, ())
    differs = torch.ne(torch.sub(loss, loss), 0)  # Inf - Inf is NaN
    return torch.where(differs, torch.clamp(since, max=step), NEVER)


class LaterLosses(Listener):
    """Listener that reports a loss that becomes NaN or infinite after the recorded steps."""

    sees_later_steps = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._recorded = 0  # number of the last recorded step
        self._step = 0  # number of the current step
        self._count = 0  # number of optimizer steps before the last backward
        self._lines: dict[CodePosition | None, _LossesOfLine] = {}
        self._searches = 0

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Check the loss of a recorded step."""
        self._step = self._recorded = self.program.step
        self._count = self.program.steps.count
        if event.live.call.accumulates:
            self._check(event.outputs, event.frame)

    def on_later_backward(self, event: EngineCalled) -> None:
        """Check the loss of a step after the recorded ones."""
        if event.accumulates:
            before, self._count = self._count, self.program.steps.count
            self._step += self._count > before
            self._check(event.outputs, event.frame)

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        rows = [(place, known) for place, known in self._lines.items()]
        there = [(k, Probe(k.on_device)) for _, k in rows if k.on_device is not None]
        for (known, _), values in zip(there, fetch([each for _, each in there]), strict=True):
            known.since = next((n for n in values if n != NEVER), None)
        for place, known in rows:
            if known.since is not None and known.since > self._recorded:
                self.events.note(
                    NonfiniteLoss(is_nan=math.isnan(known.value), spoilt=known.spoilt),
                    place,
                    step=known.since,
                    steps=self._step + 1,
                    recorded=self._recorded + 1,
                )

    def close(self) -> None:
        self._lines = {}

    def _check(self, outputs: Sequence[object], frame: FrameType | None) -> None:
        loss = outputs[0] if len(outputs) == 1 else None
        if not isinstance(loss, Tensor) or not loss.dtype.is_floating_point:
            return
        place = self.program.place(frame)
        known = self._lines.get(place)
        if known is None:
            if len(self._lines) >= _MAX_LINES:
                return
            known = self._lines[place] = _LossesOfLine()
        with unobserved():
            if TensorBase.numel(loss) != 1 or not may_be_read(loss):
                known.since = known.on_device = None
            elif loss.is_cpu:
                self._read(known, TensorBase.item(loss))
            else:
                known.on_device = since_on_device(known.on_device, loss, self._step)

    def _read(self, known: _LossesOfLine, value: float) -> None:
        if math.isfinite(value):
            known.since = None
        elif known.since is None:
            known.since, known.value, known.spoilt = self._step, value, None
            if self._searches < _MAX_SEARCHES:
                self._searches += 1
                optimizers = [record.ref() for record in self.program.steps.log]
                alive = [each for each in optimizers if each is not None]
                known.spoilt = any(_has_nonfinite(p) for each in alive for p in parameters_of(each))


def _has_nonfinite(parameter: Tensor) -> bool:
    if not parameter.is_cpu or not may_be_read(parameter) or TensorBase.numel(parameter) == 0:
        return False
    return not TensorBase.item(torch.all(torch.isfinite(TensorBase.detach(parameter))))
