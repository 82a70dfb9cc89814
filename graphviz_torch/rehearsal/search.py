"""Find plans with which a step fits into memory: try single plans, then cheap combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from math import prod

from .configurations import kind_of, ladders
from .trials import Trial, cost

# A function that rehearses the script with some changes. It returns None if the script fails.
Attempt = Callable[[tuple[str, ...]], Trial | None]

_MAX_COMBINED = 5  # largest number of plans in a combination, except for all plans together
_ENOUGH_FITTING = 3  # number of fitting combinations after which the search ends
_MAX_TRIES = 8  # number of combinations to try
# The next plan of a ladder is tried if the peak is at most this fraction of the previous peak.
_MIN_REDUCTION = 0.99


def try_plans(
    attempt: Attempt,
    size: int,
    *,
    mesh: Sequence[int] = (),
    others: Sequence[str] = (),
) -> list[Trial]:
    """Rehearse the unchanged script, each plan alone, and some combinations of plans.

    If the unchanged script fits, nothing else is tried. For a plan with a number, such as
    micro-batches, the number is increased until the step fits, or until no more memory is freed.

    The memory of a combination is predicted from the trials of its single plans. Combinations that
    are predicted to fit are rehearsed, the cheapest first, until three of them fit. If none fits,
    all plans are combined.

    Args:
        attempt: rehearses the script with some changes, given by their names. Returns None if the
            script fails.
        size: memory of a device in bytes.
        mesh: sizes of the script's mesh, innermost last.
        others: names of changes that `attempt` can make, in addition to `plans()`.

    Returns:
        The trials, in the order of execution. The list is empty if the unchanged script fails.

    >>> def attempt(changes):
    ...     return Trial(changes, 90 - 20 * len(changes), 1, 1)
    >>> [each.name for each in try_plans(attempt, 80)][:2]
    ['as it is', 'fused']
    """
    plain = attempt(())
    if plain is None or plain.peak_bytes <= size:
        return [] if plain is None else [plain]
    alone = [
        each
        for ladder in [*([name] for name in others), *ladders(mesh)]
        for each in _trials_of_ladder(attempt, ladder, plain, size)
    ]
    return [plain, *alone, *dict.fromkeys(_combinations(cache(attempt), alone, plain, size))]


def _trials_of_ladder(
    attempt: Attempt, ladder: list[str], plain: Trial, size: int
) -> Iterator[Trial]:
    """Try the plans of a ladder until one fits or saves no more memory; yield the trials.

    Args:
        attempt: rehearses the script with some changes.
        ladder: plans, each of which should save more memory than the previous one.
        plain: the trial of the unchanged script.
        size: memory of a device in bytes.
    """
    best = plain
    for name in ladder:
        found = attempt((name,))
        if found is None or found.peak_bytes > _MIN_REDUCTION * best.peak_bytes:
            return
        yield found
        best = found
        if best.peak_bytes <= size:
            return


def _combinations(
    attempt: Attempt,
    alone: Sequence[Trial],
    plain: Trial,
    size: int,
) -> list[Trial]:
    fitting = [set(each.changes) for each in alone if each.peak_bytes <= size]
    found, tried, enough = list[Trial](), 0, len(fitting) + _ENOUGH_FITTING
    missed = 1.0  # largest ratio of a rehearsed peak to the predicted peak
    for foretold in sorted(_predictions(alone, plain), key=lambda each: cost(each, plain)):
        if tried == _MAX_TRIES or len(fitting) == enough:
            break
        changes = set(foretold.changes)
        if foretold.peak_bytes * missed > size or any(less < changes for less in fitting):
            continue  # will not fit, or fewer of its plans fit already
        trial = attempt(foretold.changes)
        tried += 1
        if trial is not None:
            found.append(trial)
            missed = max(missed, trial.peak_bytes / max(1, foretold.peak_bytes))
            fitting += [changes] if trial.peak_bytes <= size else []
    return found if fitting else [*found, *_combine_all(attempt, alone, plain, size)]


def _combine_all(
    attempt: Attempt,
    alone: Sequence[Trial],
    plain: Trial,
    size: int,
) -> list[Trial]:
    """Combine the plan of each kind that saves most, then drop plans that are not needed to fit.

    Args:
        attempt: rehearses the script with some changes.
        alone: the trials of single plans.
        plain: the trial of the unchanged script.
        size: memory of a device in bytes.

    Returns:
        The trials, in the order of execution.
    """
    kinds = _by_kind(alone)
    names = {kind: trials[-1].name for kind, trials in kinds}
    joined = attempt(tuple(names.values())) if len(names) > 1 else None
    found = [] if joined is None else [joined]
    if joined is None or joined.peak_bytes > size:
        return found
    for kind, trials in sorted(kinds, key=lambda row: cost(row[1][-1], plain), reverse=True):
        for less in ["", *(each.name for each in trials[:-1])]:
            fewer = tuple(name for name in {**names, kind: less}.values() if name)
            trial = attempt(fewer) if len(fewer) > 1 else None
            found += [] if trial is None else [trial]
            if trial is not None and trial.peak_bytes <= size:
                names[kind] = less
                break
    return found


def _predictions(alone: Sequence[Trial], plain: Trial) -> Iterator[Trial]:
    """Yield predicted trials for combinations of plans, at most one of each kind.

    The prediction assumes that a plan scales the memory of each role by the same factor in a
    combination as alone.
    """
    for count in range(2, _MAX_COMBINED + 1):
        for some in combinations(_by_kind(alone), count):
            for trials in product(*(trials for _, trials in some)):
                rows = [dict(each.at_peak) or {"": each.peak_bytes} for each in (plain, *trials)]
                roles = {role for row in rows for role in row}
                yield Trial(
                    tuple(name for each in trials for name in each.changes),
                    sum(_predict([row.get(role, 0) for row in rows]) for role in roles),
                    _predict([each.wire_bytes for each in (plain, *trials)]),
                    _predict([each.flops for each in (plain, *trials)]),
                )


def _predict(numbers: Sequence[int]) -> int:
    """Predict a number, such as a size in bytes, for a combination of plans.

    Args:
        numbers: the number without plans, followed by the number with each plan alone.
    """
    before, *after = numbers
    return round(before * prod(each / before for each in after)) if before else max(after)


def _by_kind(alone: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """Group the trials by the kinds of their plans. The kind that saves most memory is first."""
    kinds: dict[str, list[Trial]] = {}
    for each in alone:
        kinds.setdefault(kind_of(each.name), []).append(each)
    return sorted(kinds.items(), key=lambda row: row[1][-1].peak_bytes)
