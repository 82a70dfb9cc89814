"""The history of one optimizer: its learning rates, and whether its gradients are cleared.

One gradient represents all: the optimizer's first. It is checked when the optimizer steps, and
before and after each backward; a change outside of backward is clearing. A rate is compared with
earlier ones: it may warm up from zero, and decay to zero at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...graph.units import number_text
from ...internals.functions import TensorBase
from .checks import WatchReport, line_of

_ZERO_FOR = 10  # steps with a rate of zero
_RATE_JUMP, _RATE_AFTER = 500.0, 10  # times the largest so far, after so many steps
_UNCLEARED = 5  # steps in a row


class OptimizerPast:
    """The steps of an optimizer. Keeps no reference to its gradients.

    Args:
        optimizer: whose.
        step: the first that it takes.
    """

    def __init__(self, optimizer: Optimizer, step: int) -> None:
        self.ref = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.first = step
        self.own: list[int] = []  # the model's parameters that it has
        self.guard = -1  # the one whose gradient is read in each step
        self.held: set[int] = set()  # id() of all that it has
        self.looked_up = -1  # the step in which these were
        self.steps = 0
        self.closure = False  # is its step given one that computes the gradients
        self.keeps = False  # does it keep anything of its steps
        self.backward_since = False  # has one added to its gradients since it stepped
        self._rates: list[float | None] = []
        self._largest: list[float] = []  # rates so far, by group
        self._zero = 0  # steps in a row
        self._gradient: tuple[int, int] | None = None  # id() and version, as it was used last
        self._sample: Tensor | None = None  # the parameter that has it
        self._cleared = True  # since then
        self._uncleared = 0  # steps in a row
        self._since = 0

    def has_other_rates(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return True if it steps with other rates than before; else count the step."""
        rates = [group.get("lr") for group in groups]
        if rates != self._rates or self._zero or {*map(type, rates)} != {float}:
            return True
        self.steps += 1
        return False

    def rates(
        self, step: int, groups: Sequence[dict[str, Any]], frame: FrameType
    ) -> Iterator[WatchReport]:
        """Check the rates of the coming step."""
        self.steps += 1
        rates = [_rate(group.get("lr")) for group in groups]
        if rates == self._rates and not self._zero:
            return
        zero = bool(rates) and all(rate == 0 for rate in rates) and any(self._largest)
        self._zero = self._zero + 1 if zero else 0
        if self._zero == _ZERO_FOR:
            text = f"The learning rate of {self.name}{line_of(frame)} is 0 from step "
            text += f"{step - _ZERO_FOR + 1} on: its steps change nothing."
            yield WatchReport(step, "zero-learning-rate", text)
        if rates != self._rates:
            yield from self._jump(step, rates, groups, frame)
            self._rates = rates

    def _jump(
        self,
        step: int,
        rates: Sequence[float | None],
        groups: Sequence[dict[str, Any]],
        frame: FrameType,
    ) -> Iterator[WatchReport]:
        largest = self._largest + [0.0] * (len(rates) - len(self._largest))
        told = self.steps <= _RATE_AFTER
        for i, rate in enumerate(rates):
            usual = max(largest[i], _rate(groups[i].get("initial_lr")) or 0.0)
            largest[i] = max(largest[i], rate or 0.0)
            if rate is not None and usual and rate > _RATE_JUMP * usual and not told:
                text = (
                    f"The learning rate of {self.name}{line_of(frame)} is {number_text(rate)} in "
                )
                text += f"step {step}: the largest before was {number_text(usual)}."
                yield WatchReport(step, "learning-rate-jump", text)
                told = True
        self._largest = largest

    @property
    def decayed(self) -> bool:
        """Return True if its rates decayed to almost nothing."""
        pairs = zip(self._rates, self._largest, strict=False)
        return all(rate is not None and (rate == 0 or rate < 1e-3 * most) for rate, most in pairs)

    def uses(self, step: int, parameters: Sequence[tuple[str, Tensor]]) -> bool:
        """Note a step with the current gradients; return True if uncleared gradients must be
        reported.
        """
        if self._cleared or not self.backward_since:
            self._uncleared = 0
        else:
            self._uncleared += 1
            if self._uncleared == 1:
                self._since = step
        self._sample = None
        for i in self.own:
            if parameters[i][1].grad is not None:
                self._sample = parameters[i][1]
                break
        self._gradient = self._look()
        self._cleared = self._gradient is None
        self.backward_since = False
        return self._uncleared == _UNCLEARED

    def uncleared(self, step: int, frame: FrameType | None) -> Iterator[WatchReport]:
        """Report since when its gradients are not cleared."""
        text = f"The gradients are not cleared from step {self._since} on: {self.name}"
        text += f"{line_of(frame)} steps with their sum."
        yield WatchReport(step, "missing-zero-grad", text)

    def backward_began(self) -> None:
        """Handle the beginning of a backward, which may add to its gradients."""
        if not self._cleared and self._look() != self._gradient:
            self._cleared = True

    def backward_ended(self) -> None:
        """Handle the end of a backward."""
        if not self.backward_since and self._sample is not None:
            self.backward_since = self._cleared or self._look() != self._gradient

    def _look(self) -> tuple[int, int] | None:
        gradient = None if self._sample is None else self._sample.grad
        if gradient is None or TensorBase.is_inference(gradient):
            return None
        return id(gradient), gradient._version


def _rate(rate: object) -> float | None:
    """Return a learning rate; None if a device would have to be waited for."""
    if type(rate) is float:
        return rate
    if isinstance(rate, Tensor):
        return (
            float(rate)
            if type(rate) is Tensor and rate.is_cpu and TensorBase.numel(rate) == 1
            else None
        )
    return float(rate) if isinstance(rate, (int, float)) else None
