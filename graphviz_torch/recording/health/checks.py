"""Compare norms and memory of each step with those of earlier steps, to find sudden changes.

Each rule reports a parameter once. The bounds are so wide that a healthy training run does not
reach them. For example, a gradient norm is reported if it exceeds ten times the largest norm of the
last fifty steps.

Graphs of earlier steps may stay alive, as with a list of losses or a running sum. At every fourth
step the graph is marked: a weak reference to the hook dictionary of its root is kept. The
dictionary is freed together with the root, so the mark shows whether the graph is alive.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import bytes_text, number_text
from ...internals.frames import local_variables, user_frame, user_frames
from ...internals.hooks.nodes import hook_dictionaries
from ...tracing.nodes import sources_of

PATIENCE = 20  # a parameter is reported after this number of consecutive steps without a gradient
_PAST = 50  # number of earlier steps with which a gradient norm is compared
_SPIKE = 10.0  # a gradient norm is a spike if it exceeds this many times the largest earlier norm
_NOTABLE = 0.01  # norms below this fraction of the largest initial norm are never a spike
_LARGE_UPDATE = 0.1  # an update is large if it exceeds this fraction of the weight's norm
_LARGE_SAMPLES = 3  # a weight is reported after this number of consecutive large updates
_SHRUNKEN = 1e-3  # a weight collapsed if its norm is below this fraction of its largest norm
_EFFECTS_OF_A_RATE = {  # rules that report consequences of a bad learning rate
    "gradient-spike",
    "large-update",
    "no-update",
    "nonfinite-gradient",
    "nonfinite-loss",
}
# Rule -> rules whose reports are consequences of its report, and are dropped for a while.
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
_EFFECT_STEPS = 1000  # number of steps in which consequences of a report are dropped
_MEMORY_SAMPLES = 8  # memory is reported if it grew in each of this number of samples
# Least growth of the memory over `_MEMORY_SAMPLES` samples, as a ratio and as a number of bytes.
_GROWTH, _MIN_GROWTH = 1.1, 64 << 20


@immutable
class WatchReport:
    """A problem in a step of a watched training run."""

    step: int  # number of the step, from 0 on
    rule: str  # id of the rule, as in `rules()`
    message: str
    parameters: tuple[str, ...] = ()


class HealthChecks:
    """The checks of one training run, with the norms of its earlier steps.

    Args:
        names: names of the parameters. The methods identify a parameter by its index in `names`.

    >>> checks = HealthChecks(["body.weight", "head.weight"])
    >>> [report.message for report in checks.gradients(7, {0: 1.0, 1: math.nan})]
    ['The gradient of head.weight is not finite before step 7 uses it.']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # Parameter without a gradient -> the first of its latest steps without one, the number of
        # these steps, and True if the gradient is None, False if it is zero.
        self._idle: dict[int, tuple[int, int, bool]] = {}
        self._known: set[tuple[str, int]] = set()  # rules and parameters that were reported
        self._causes: dict[str, int] = {}  # rule -> step of its last report
        self._largest = 0.0  # largest gradient norm of the first steps
        # A group of parameters, given by its first parameter and its size -> the norms of the
        # group's gradients in earlier steps.
        self._totals: dict[tuple[int, int], deque[float]] = {}
        self._updates: dict[int, int] = {}  # parameter -> number of consecutive large updates
        # Parameter -> its largest norm, and the step in which it had this norm.
        self._weights: dict[int, tuple[float, int]] = {}
        self._memory: deque[int] = deque(maxlen=_MEMORY_SAMPLES)

    def gradients(self, step: int, norms: Mapping[int, float | None]) -> Iterator[WatchReport]:
        """Check the norms of gradients before a step.

        Args:
            step: number of the step.
            norms: norm of the gradient, by index of the parameter; None for a parameter without a
                gradient.
        """
        known = [norm for norm in norms.values() if norm]
        total = math.hypot(*known)
        if not math.isfinite(total):
            bad = [i for i, norm in norms.items() if norm is not None and not math.isfinite(norm)]
            if bad:  # if not, the norms are finite and only the sum of their squares overflows
                yield from self._report(
                    step,
                    "nonfinite-gradient",
                    bad,
                    f"The gradient of {{}} is not finite before step {step} uses it.",
                    once=True,
                )
                return
        if len(known) < len(norms) or self._idle:
            yield from self._check_idle(step, norms)
        if known:
            yield from self._check_spike(step, (min(norms), len(norms)), total)

    def _check_idle(self, step: int, norms: Mapping[int, float | None]) -> Iterator[WatchReport]:
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
            said = f"{{}} had {what} in {PATIENCE} consecutive steps, from step {first} on."
            yield from self._report(step, "no-gradient", parameters, said)

    def _check_spike(self, step: int, part: tuple[int, int], total: float) -> Iterator[WatchReport]:
        past = self._totals.setdefault(part, deque(maxlen=_PAST))
        largest = max(past) if len(past) == _PAST else math.inf
        self._largest = max(self._largest, total if len(past) < _PAST else 0.0)
        if total > _SPIKE * largest and total > _NOTABLE * self._largest:
            text = f"The norm of the gradients is {number_text(total)} in step {step}. The largest "
            text += f"norm in the {_PAST} steps before was {number_text(largest)}."
            yield from self._report(step, "gradient-spike", (), text, once=True)
        past.append(total)

    def update(
        self, step: int, parameter: int, weight: float, change: float
    ) -> Iterator[WatchReport]:
        """Check the norm of a sampled weight, and how much a step changed it.

        Args:
            step: number of the step.
            parameter: index of the weight.
            weight: norm of the weight before the step.
            change: norm of the difference between the weight after and before the step.
        """
        largest, when = self._weights.get(parameter, (0.0, step))
        if weight >= largest:
            self._weights[parameter] = weight, step
        elif weight < _SHRUNKEN * largest:
            part = f"{number_text(weight / largest)} of its value" if weight else "0"
            text = f"The norm of {{}} fell to {part} between step {when} and step {step}."
            yield from self._report(step, "collapsed-weight", (parameter,), text)
        large = step > _PAST and weight > 0 and change > _LARGE_UPDATE * weight
        self._updates[parameter] = self._updates.get(parameter, 0) + 1 if large else 0
        if self._updates[parameter] == _LARGE_SAMPLES:
            said = f"A step changes {{}} by {change / weight:.0%} of its norm, in {_LARGE_SAMPLES} "
            said += "consecutive samples."
            yield from self._report(step, "large-update", (parameter,), said)

    def forget_weights(self) -> None:
        """Forget earlier weight norms, because some parameters were replaced."""
        self._weights.clear()

    def unchanged_weights(
        self, step: int, parameters: Sequence[int], since: tuple[int, int], *, all_of_them: bool
    ) -> Iterator[WatchReport]:
        """Report parameters that no step has changed for a while.

        Args:
            step: number of the step.
            parameters: indices of the unchanged parameters.
            since: the last step known to have changed one of the parameters, and the first step
                known to have changed none of them.
            all_of_them: True if no parameter of the optimizer changes.
        """
        what = "any weight" if all_of_them else "{}"
        first, last = since
        when = f"step {last}" if first >= last - 1 else f"a step between {first + 1} and {last}"
        text = f"There are gradients, but no step has changed {what} since {when}."
        yield from self._report(step, "no-update", parameters, text)

    def memory(self, step: int, nbytes: int) -> Iterator[WatchReport]:
        """Check the memory in use, in bytes, of the process or the devices."""
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
        """Yield a report unless this rule has already reported these parameters.

        Args:
            step: number of the step.
            kind: id of the rule.
            parameters: indices of the parameters that the report is about.
            text: the message, in which {} is replaced by the parameters' names.
            once: True if the rule reports once per training run, False if once per parameter.
        """
        keys = {(kind, -1 if once else i) for i in parameters} or {(kind, -1)}
        if keys <= self._known:
            return
        self._known |= keys
        names = tuple(self._names[i] for i in parameters)
        yield WatchReport(step, kind, text.format(listing(names)), names)

    def without_effects(self, report: WatchReport) -> Iterator[WatchReport]:
        """Yield a report, unless it is only a consequence of one that was made before."""
        told = self._causes.get(report.rule) if report.rule == "nonfinite-loss" else None
        if told is not None or any(
            report.rule in _EFFECTS.get(kind, ()) and report.step - step < _EFFECT_STEPS
            for kind, step in self._causes.items()
        ):
            return
        self._causes[report.rule] = report.step
        yield report


def line_of(frame: FrameType | None) -> str:
    """Return the user's line of a call, such as " at train.py:36"; "" if unknown."""
    here = user_frame(frame)
    return "" if here is None else f" at {Path(here.f_code.co_filename).name}:{here.f_lineno}"


_MARK_EVERY = 4  # steps between two marks
_CHECK_EVERY = 8  # steps between two checks of the marks
_MIN_ALIVE = 6  # graphs are reported if the marked graphs of this number of steps are alive
_MAX_NODES = 64  # maximum number of nodes to search upstream of a variable
_MAX_FRAMES = 4  # maximum number of frames to search for the variable that keeps the graphs

_Mark = weakref.ref[Any]


class RetainedGraphMarks:
    """Weak references to graphs of earlier steps, which show whether many graphs stay alive."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, _Mark]] = deque()
        self._reported = False

    def mark(self, step: int, outputs: Sequence[Any]) -> None:
        """Put a weak mark on the graph of a backward, at every `_MARK_EVERY`-th step.

        Args:
            step: number of the step.
            outputs: roots of the backward.
        """
        if self._reported or step % _MARK_EVERY:
            return
        for output in outputs:
            fn = output.grad_fn if isinstance(output, Tensor) else None
            if fn is not None:
                self._marks.append((step, weakref.ref(hook_dictionaries([fn])[0])))
                return

    def due(self, step: int) -> bool:
        """Return True if `report` has to check in this step whether marked graphs are alive."""
        return not (self._reported or step % _CHECK_EVERY)

    def report(self, step: int, frame: FrameType) -> Iterator[WatchReport]:
        """Yield a report if graphs of many earlier steps are still in memory."""
        self._marks = deque((when, mark) for when, mark in self._marks if mark() is not None)
        steps = {when for when, _ in self._marks if when < step}
        if len(steps) < _MIN_ALIVE:
            return
        self._reported = True
        name, place = self._holder(frame)
        self._marks.clear()
        what = f"{name}{place} keeps" if name else "Something keeps"
        text = f"{what} the graph of each step alive, from step {min(steps)} on."
        yield WatchReport(step, "retained-graph", text)

    def _holder(self, frame: FrameType) -> tuple[str, str]:
        """Return the variable that keeps the graphs alive, and its function, as in " in train()".

        Both are "" if unknown.
        """
        marked = {id(mark()) for _, mark in self._marks}
        for outer in user_frames(user_frame(frame))[:_MAX_FRAMES]:
            for name, value in local_variables(outer).items():
                held = value[-_CHECK_EVERY:] if isinstance(value, list) else [value]
                fns = [t.grad_fn for t in held if isinstance(t, Tensor) and t.grad_fn is not None]
                # From a running sum, the search goes on to the sums of earlier steps.
                for _ in range(0 if isinstance(value, list) else _CHECK_EVERY):
                    fns = [*dict.fromkeys(f for fn in fns for f in (fn, *sources_of(fn)))]
                    del fns[_MAX_NODES:]
                if any(id(each) in marked for each in hook_dictionaries(fns)):
                    return name, f" in {outer.f_code.co_name}()" if outer.f_back else ""
        return "", ""
