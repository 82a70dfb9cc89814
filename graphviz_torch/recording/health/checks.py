"""Heuristic checks that compare each step's numbers with earlier steps of the training.

Each rule reports a parameter once. Healthy trainings stay below the bounds: a gradient norm ten
times the largest of the last fifty steps; a weight that changes by a tenth at step after step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType

from ...graph.text import listing
from ...graph.units import bytes_text, number_text
from ...internals.frames import user_frame

PATIENCE = 20  # steps without a gradient before a report
_PAST = 50  # earlier steps with which a norm is compared
_SPIKE = 10.0  # ratio of a spike to the largest earlier norm
_NOTABLE = 0.01  # fraction of the largest initial norm; below, the training has converged
_LARGE_UPDATE = 0.1  # fraction of a weight's norm changed by one step
_LARGE_SAMPLES = 3  # consecutive samples with a large update
_SHRUNKEN = 1e-3  # fraction of the largest norm of a weight
_EFFECTS_OF_A_RATE = {  # reports that follow from a bad learning rate
    "gradient-spike",
    "large-update",
    "no-update",
    "nonfinite-gradient",
    "nonfinite-loss",
}
# By rule: the rules whose reports follow from it, and are dropped in the steps after it.
_EFFECTS: dict[str, set[str]] = {
    "nonfinite-loss": {
        "nonfinite-loss",
        "nonfinite-gradient",
        "gradient-spike",
        "large-update",
        "no-update",
    },
    "zero-learning-rate": _EFFECTS_OF_A_RATE,
    "learning-rate-jump": _EFFECTS_OF_A_RATE,
    "missing-zero-grad": {"gradient-spike", "large-update", "nonfinite-gradient"},
    "nonfinite-gradient": {"nonfinite-loss", "gradient-spike", "large-update", "no-update"},
    "replaced-parameters": {"no-gradient", "no-update", "gradient-spike"},
    "recreated-optimizer": {"gradient-spike", "large-update"},
    "retained-graph": {"growing-memory"},
    "collapsed-weight": {
        "collapsed-weight",
        "gradient-spike",
        "large-update",
        "no-gradient",
        "no-update",
    },
}
_EFFECT_STEPS = 1000  # steps in which such reports are dropped
_MEMORY_SAMPLES = 8  # consecutive growing samples of the memory in use
_GROWTH, _MIN_GROWTH = 1.1, 64 << 20  # ratio and bytes


@dataclass(frozen=True, slots=True)
class WatchReport:
    """A problem in a step of a watched training."""

    step: int  # from 0
    rule: str  # its id, as `rules()` lists it
    message: str
    parameters: tuple[str, ...] = ()


class HealthChecks:
    """The checks of one training, with the numbers of its earlier steps.

    Args:
        names: names of the parameters, which are numbered in this order.

    >>> checks = HealthChecks(["body.weight", "head.weight"])
    >>> [report.message for report in checks.gradients(7, {0: 1.0, 1: math.nan})]
    ['The gradient of head.weight is not finite before step 7 uses it.']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # First step, number of steps, True if None.
        self._idle: dict[int, tuple[int, int, bool]] = {}
        self._known: set[tuple[str, int]] = set()  # reported rules and parameters
        self._causes: dict[str, int] = {}  # step of the last report, by rule
        self._largest = 0.0  # gradient norm of the first steps
        self._totals: dict[tuple[int, int], deque[float]] = {}  # by first parameter and their count
        self._updates: dict[int, int] = {}  # consecutive large updates, by parameter
        self._weights: dict[int, tuple[float, int]] = {}  # the largest norm, and its step
        self._memory: deque[int] = deque(maxlen=_MEMORY_SAMPLES)

    def gradients(self, step: int, norms: Mapping[int, float | None]) -> Iterator[WatchReport]:
        """Check the norms of gradients by parameter (None: no gradient)."""
        known = [norm for norm in norms.values() if norm]
        total = math.hypot(*known)
        if not math.isfinite(total):
            bad = [i for i, norm in norms.items() if norm is not None and not math.isfinite(norm)]
            if bad:  # else only the sum of squares overflows
                yield from self._report(
                    step,
                    "nonfinite-gradient",
                    bad,
                    f"The gradient of {{}} is not finite before step {step} uses it.",
                    once=True,
                )
                return
        if len(known) < len(norms) or self._idle:
            yield from self._idling(step, norms)
        if known:
            yield from self._spike(step, (min(norms), len(norms)), total)

    def _idling(self, step: int, norms: Mapping[int, float | None]) -> Iterator[WatchReport]:
        due: dict[tuple[int, bool], list[int]] = {}
        for i, norm in norms.items():
            if norm:
                self._idle.pop(i, None)
                continue
            first, count, _ = self._idle.get(i, (step, 0, False))
            self._idle[i] = first, count + 1, norm is None
            if count + 1 == PATIENCE:
                due.setdefault((first, norm is None), []).append(i)
        for (first, absent), parameters in due.items():
            what = "no gradient" if absent else "a gradient of exactly zero"
            said = f"{{}} had {what} in each of {PATIENCE} steps, from step {first} on."
            yield from self._report(step, "no-gradient", parameters, said)

    def _spike(self, step: int, part: tuple[int, int], total: float) -> Iterator[WatchReport]:
        past = self._totals.setdefault(part, deque(maxlen=_PAST))
        largest = max(past) if len(past) == _PAST else math.inf
        self._largest = max(self._largest, total if len(past) < _PAST else 0.0)
        if total > _SPIKE * largest and total > _NOTABLE * self._largest:
            text = f"The norm of the gradients is {number_text(total)} in step {step}: the largest "
            text += f"of the {_PAST} steps before is {number_text(largest)}."
            yield from self._report(step, "gradient-spike", (), text, once=True)
        past.append(total)

    def update(
        self, step: int, parameter: int, weight: float, change: float
    ) -> Iterator[WatchReport]:
        """Check a sampled weight: its norm before the step, and the norm of the change."""
        largest, when = self._weights.get(parameter, (0.0, step))
        if weight >= largest:
            self._weights[parameter] = weight, step
        elif weight < _SHRUNKEN * largest:
            part = f"{number_text(weight / largest)} of" if weight else "0, and not"
            text = f"The norm of {{}} before step {step} is {part} what it was before step {when}."
            yield from self._report(step, "collapsed-weight", (parameter,), text)
        large = step > _PAST and weight > 0 and change > _LARGE_UPDATE * weight
        self._updates[parameter] = self._updates.get(parameter, 0) + 1 if large else 0
        if self._updates[parameter] == _LARGE_SAMPLES:
            said = f"A step changes {{}} by {change / weight:.0%} of its norm, in {_LARGE_SAMPLES} "
            yield from self._report(step, "large-update", (parameter,), f"{said}samples in a row.")

    def forget_weights(self) -> None:
        """Forget earlier weight norms: some parameters were replaced."""
        self._weights.clear()

    def unchanged_weights(
        self, step: int, parameters: Sequence[int], since: tuple[int, int], *, all_of_them: bool
    ) -> Iterator[WatchReport]:
        """Report parameters that no step has changed since a step in a range.

        Args:
            since: the last step that changed one of them, and the first that did not.
            all_of_them: True if these are all parameters.
        """
        what = "any weight" if all_of_them else "{}"
        first, last = since
        when = f"step {last}" if first >= last - 1 else f"a step between {first + 1} and {last}"
        text = f"There are gradients, but no step has changed {what} since {when}."
        yield from self._report(step, "no-update", parameters, text)

    def memory(self, step: int, nbytes: int) -> Iterator[WatchReport]:
        """Check the bytes in use by the process or device."""
        self._memory.append(nbytes)
        values = list(self._memory)
        growing = all(b > a for a, b in pairwise(values))
        if len(values) == _MEMORY_SAMPLES and growing:
            first, last = values[0], values[-1]
            if last > first * _GROWTH and last - first > _MIN_GROWTH:
                text = f"The memory in use grew in each of {_MEMORY_SAMPLES} samples up to "
                text += f"step {step}, from {bytes_text(first)} to {bytes_text(last)}."
                yield from self._report(step, "growing-memory", (), text, once=True)

    def _report(
        self, step: int, kind: str, parameters: Iterable[int], text: str, *, once: bool = False
    ) -> Iterator[WatchReport]:
        """Yield a report unless this rule reported these parameters before."""
        keys = {(kind, -1 if once else i) for i in parameters} or {(kind, -1)}
        if keys <= self._known:
            return
        self._known |= keys
        names = tuple(self._names[i] for i in parameters)
        yield WatchReport(step, kind, text.format(listing(names)), names)

    def without_effects(self, report: WatchReport) -> Iterator[WatchReport]:
        """Yield a report unless it follows from an earlier one."""
        told = self._causes.get(report.rule) if report.rule == "nonfinite-loss" else None
        if told is not None or any(
            report.rule in _EFFECTS.get(kind, ()) and report.step - step < _EFFECT_STEPS
            for kind, step in self._causes.items()
        ):
            return
        self._causes[report.rule] = report.step
        yield report


def line_of(frame: FrameType | None) -> str:
    """Return the user's line of a call, as in " at train.py:36"; "" if unknown."""
    here = user_frame(frame)
    return "" if here is None else f" at {Path(here.f_code.co_filename).name}:{here.f_lineno}"
