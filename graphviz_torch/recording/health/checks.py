"""Heuristic checks that compare each step's numbers with the training's past.

Each kind and parameter is reported once. Healthy trainings stay below the bounds: a norm ten times
the largest of the last fifty steps, a weight that changes by a tenth in step after step.
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

PATIENCE = 20  # steps without a gradient
_PAST = 50  # steps that a norm is held against
_SPIKE = 10.0  # times the largest of them
_NOTABLE = 0.01  # of the largest norm that the training began with: below, it has converged
_LARGE = 0.1  # of a weight's norm, in one step
_AGAIN = 3  # samples in a row
_SHRUNKEN = 1e-3  # of the norm that a weight had
_OF_A_RATE = {
    "gradient-spike",
    "large-update",
    "no-update",
    "nonfinite-gradient",
    "nonfinite-loss",
}
# By rule, the rules whose reports follow from its own, and are left out in the steps after it.
_EFFECTS: dict[str, set[str]] = {
    "nonfinite-loss": {
        "nonfinite-loss",
        "nonfinite-gradient",
        "gradient-spike",
        "large-update",
        "no-update",
    },
    "zero-learning-rate": _OF_A_RATE,
    "learning-rate-jump": _OF_A_RATE,
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
_FOLLOWS = 1000  # steps
_SAMPLES = 8  # of the memory, each larger than the one before
_GROWTH, _LEAST_GROWTH = 1.1, 64 << 20


@dataclass(frozen=True, slots=True)
class WatchReport:
    """A problem in a step of a watched training."""

    step: int  # from 0
    rule: str  # its id, as `rules()` lists it
    message: str
    parameters: tuple[str, ...] = ()


class Signs:
    """The past of a training, and problems of a new step.

    Args:
        names: of the parameters; they are numbered as here.

    >>> signs = Signs(["body.weight", "head.weight"])
    >>> [report.message for report in signs.gradients(7, {0: 1.0, 1: math.nan})]
    ['The gradient of head.weight is not finite before step 7 uses it.']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._idle: dict[int, tuple[int, int, bool]] = {}  # first step, how many, is it None
        self._known: set[tuple[str, int]] = set()  # what was said
        self._causes: dict[str, int] = {}  # what was said, and when
        self._largest = 0.0  # norm of the gradients in the first steps
        self._totals: dict[tuple[int, int], deque[float]] = {}  # by first parameter and their count
        self._updates: dict[int, int] = {}  # samples in a row
        self._weights: dict[int, tuple[float, int]] = {}  # the largest norm, and its step
        self._memory: deque[int] = deque(maxlen=_SAMPLES)

    def gradients(self, step: int, norms: Mapping[int, float | None]) -> Iterator[WatchReport]:
        """Check the norms of gradients by parameter; None: no gradient."""
        known = [norm for norm in norms.values() if norm]
        total = math.hypot(*known)
        if not math.isfinite(total):
            bad = [i for i, norm in norms.items() if norm is not None and not math.isfinite(norm)]
            if bad:  # else their squares are too large
                yield from self._say(
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
            yield from self._say(step, "no-gradient", parameters, said)

    def _spike(self, step: int, part: tuple[int, int], total: float) -> Iterator[WatchReport]:
        past = self._totals.setdefault(part, deque(maxlen=_PAST))
        largest = max(past) if len(past) == _PAST else math.inf
        self._largest = max(self._largest, total if len(past) < _PAST else 0.0)
        if total > _SPIKE * largest and total > _NOTABLE * self._largest:
            text = f"The norm of the gradients is {number_text(total)} in step {step}: the largest "
            text += f"of the {_PAST} steps before is {number_text(largest)}."
            yield from self._say(step, "gradient-spike", (), text, once=True)
        past.append(total)

    def update(
        self, step: int, parameter: int, weight: float, change: float
    ) -> Iterator[WatchReport]:
        """Check a parameter's sample: its norm before the step, and the norm of the change."""
        largest, when = self._weights.get(parameter, (0.0, step))
        if weight >= largest:
            self._weights[parameter] = weight, step
        elif weight < _SHRUNKEN * largest:
            part = f"{number_text(weight / largest)} of" if weight else "0, and not"
            text = f"The norm of {{}} before step {step} is {part} what it was before step {when}."
            yield from self._say(step, "collapsed-weight", (parameter,), text)
        large = step > _PAST and weight > 0 and change > _LARGE * weight
        self._updates[parameter] = self._updates.get(parameter, 0) + 1 if large else 0
        if self._updates[parameter] == _AGAIN:
            said = f"A step changes {{}} by {change / weight:.0%} of its norm, in {_AGAIN} samples "
            yield from self._say(step, "large-update", (parameter,), f"{said}in a row.")

    def forget_weights(self) -> None:
        """Forget the weights' past: some were replaced."""
        self._weights.clear()

    def still(
        self, step: int, parameters: Sequence[int], since: tuple[int, int], *, all_of_them: bool
    ) -> Iterator[WatchReport]:
        """Report parameters that no step has changed since a step between two."""
        what = "any weight" if all_of_them else "{}"
        first, last = since
        when = f"step {last}" if first >= last - 1 else f"a step between {first + 1} and {last}"
        text = f"There are gradients, but no step has changed {what} since {when}."
        yield from self._say(step, "no-update", parameters, text)

    def memory(self, step: int, nbytes: int) -> Iterator[WatchReport]:
        """Check the memory in use by the process or device."""
        self._memory.append(nbytes)
        values = list(self._memory)
        growing = all(b > a for a, b in pairwise(values))
        if len(values) == _SAMPLES and growing:
            first, last = values[0], values[-1]
            if last > first * _GROWTH and last - first > _LEAST_GROWTH:
                text = f"The memory in use grew in each of {_SAMPLES} samples up to step {step}, "
                text += f"from {bytes_text(first)} to {bytes_text(last)}."
                yield from self._say(step, "growing-memory", (), text, once=True)

    def _say(
        self, step: int, kind: str, parameters: Iterable[int], text: str, *, once: bool = False
    ) -> Iterator[WatchReport]:
        """Yield a report unless it was made before."""
        keys = {(kind, -1 if once else i) for i in parameters} or {(kind, -1)}
        if keys <= self._known:
            return
        self._known |= keys
        names = tuple(self._names[i] for i in parameters)
        yield WatchReport(step, kind, text.format(listing(names)), names)

    def judge(self, report: WatchReport) -> Iterator[WatchReport]:
        """Yield a report unless it follows from an earlier one."""
        told = self._causes.get(report.rule) if report.rule == "nonfinite-loss" else None
        if told is not None or any(
            report.rule in _EFFECTS.get(kind, ()) and report.step - step < _FOLLOWS
            for kind, step in self._causes.items()
        ):
            return
        self._causes[report.rule] = report.step
        yield report


def line_of(frame: FrameType | None) -> str:
    """Return the user's line of a call: " at train.py:36"."""
    here = user_frame(frame)
    return "" if here is None else f" at {Path(here.f_code.co_filename).name}:{here.f_lineno}"
