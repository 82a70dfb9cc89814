"""Find learning rates that the program sets by hand and that do not have the intended effect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from ...findings.rules.meaning.schedulers import RateSetByHand
from ...graph.immutable import mutable
from ..program.events import Assignment
from ..program.log import Found, Query
from ..program.rows import OptimizerRow, StepRow

_MAX_OPTIMIZERS = 64
_MAX_STEPS = 4096  # number of steps of an optimizer whose rates are kept
_MIN_VALUES = 3  # a rate is set in each step if it has had this number of values
_MIN_FALLS, _MIN_RISES = 4, 3  # numbers of steps in which the rate falls and rises again
_MIN_PERIOD, _MIN_PERIODS = 3, 3
_SMALL_RATE = 0.01  # a schedule has ended if the rate is below this fraction of its maximum
_VANISHED = 1e-9  # a step with this fraction of the largest rate changes nothing
_MIN_VANISHED = 10  # number of such steps that are reported


@mutable
class _RateHistory:
    """The learning rates of an optimizer: of its parameter groups, and those that no step reads."""

    row: OptimizerRow
    last: StepRow | None = None
    rates: list[tuple[float | None, ...]] = field(default_factory=list)  # of the groups, by step
    vanished: int = 0  # number of last steps with a vanished rate
    largest: float = 0.0
    defaults: list[float] = field(default_factory=list)  # distinct values of defaults["lr"]
    is_scheduled: bool = False


class HandSetRates(Query):
    """Find learning rates that the program sets by hand without the intended effect."""

    def __init__(self) -> None:
        self._known: dict[int, _RateHistory] = {}  # by optimizer

    def on_optimizer(self, row: OptimizerRow) -> None:
        if len(self._known) < _MAX_OPTIMIZERS:
            self._known[row.optimizer] = _RateHistory(row)

    def on_step(self, row: StepRow) -> None:
        known = self._known.get(row.optimizer)
        if known is None:
            return
        known.last = row
        known.is_scheduled = known.is_scheduled or row.is_scheduled
        rates = tuple([group.rate for group in row.groups if group.size])
        if len(known.rates) < _MAX_STEPS:
            known.rates.append(rates)
        numbers = [rate for rate in rates if rate is not None]
        largest = max(numbers, default=0.0)
        known.largest = max(known.largest, largest)
        has_vanished = 0 < largest < _VANISHED * known.largest
        known.vanished = known.vanished + 1 if has_vanished else 0
        if row.default_rate is not None and known.defaults[-1:] != [row.default_rate]:
            known.defaults = [*known.defaults[-_MIN_VALUES:], row.default_rate]

    def events_of_run(self) -> Iterator[Found]:
        for known in self._known.values():
            for event, numbers in _problems(known):
                place = None if known.last is None else known.last.place
                assigned = Assignment("lr", known.row.around)
                yield Found(event, place, latest={"assigned": assigned, **numbers})


def _problems(known: _RateHistory) -> Iterator[tuple[RateSetByHand, dict[str, Any]]]:
    """Yield an event for each problem, with the numbers that differ between occurrences."""
    last = known.last
    if last is None or not known.rates or None in known.rates[0]:
        return
    name, steps = last.name, last.steps
    if known.vanished >= _MIN_VANISHED:
        event = RateSetByHand(what="vanished", optimizer=name)
        yield event, {"rate": known.largest, "count": known.vanished, "steps": steps}
    groups = [[rates[i] for rates in known.rates] for i in range(len(known.rates[0]))]
    changing = [len({*rates}) > 1 for rates in groups]
    if known.is_scheduled or not all(len(rates) == len(groups) for rates in known.rates):
        return
    now = groups[0][-1]
    if not any(changing):
        if last.attribute_rate not in (None, now):
            event = RateSetByHand(what="attribute", optimizer=name)
            yield event, {"rate": last.attribute_rate, "steps": steps}
        elif len(known.defaults) >= _MIN_VALUES:
            event = RateSetByHand(what="defaults", optimizer=name)
            yield event, {"rate": last.default_rate, "steps": steps}
        return
    first = [rate for rate in groups[0] if rate is not None]
    others = {rates[0] for rates in groups[1:]}
    is_only = changing[0] and others and not any(changing[1:]) and len({*first}) >= _MIN_VALUES
    if any(group.has_own_options for group in last.groups):
        is_only = False  # such as "fix_lr", by which the program chooses the groups
    other = next(iter(others), None) or 0.0
    if is_only and len(others) == 1 and any(math.isclose(rate, other) for rate in first):
        event = RateSetByHand(what="group", optimizer=name, groups=len(groups))
        yield event, {"steps": steps}
    end, period = _end_of_fall(first), _period_of_rises(first)
    if end is not None:
        yield RateSetByHand(what="rise", optimizer=name), {"count": end + 1, "steps": steps}
    elif period is not None:
        yield RateSetByHand(what="restart", optimizer=name), {"count": period, "steps": steps}


def _end_of_fall(rates: Sequence[float]) -> int | None:
    """Return the index of the smallest rate, if the rates fall to it smoothly and rise again."""
    end = min(range(len(rates)), key=rates.__getitem__)
    before, after = rates[max(0, end - _MIN_FALLS) : end + 1], rates[end : end + _MIN_RISES + 1]
    falls = len(before) > _MIN_FALLS and all(a > b for a, b in pairwise(before))
    rises = len(after) > _MIN_RISES and all(a < b for a, b in pairwise(after))
    if not (falls and rises and abs(rates[end]) < _SMALL_RATE * max(rates)):
        return None
    is_smooth = after[1] - after[0] < 4 * (before[-3] - before[-1])
    return end if is_smooth else None


def _period_of_rises(rates: Sequence[float]) -> int | None:
    """Return the number of steps after which a rate that only rises begins again."""
    drops = [i for i, (a, b) in enumerate(pairwise(rates), 1) if b < a]
    period = drops[0] if drops else 0
    if period < _MIN_PERIOD or len(rates) < _MIN_PERIODS * period:
        return None
    repeats = all(a == b for a, b in zip(rates, rates[period:], strict=False))
    return period if repeats else None
