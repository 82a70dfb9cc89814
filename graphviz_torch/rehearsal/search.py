"""Choose plans to rehearse: each alone, then combinations that should fit at least cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from math import prod

from .configurations import kind_of, ladders
from .trials import Trial, cost

# Rehearses with these changes; returns None if the script fails with them.
Attempt = Callable[[tuple[str, ...]], Trial | None]

_MAX_COMBINED = 5  # plans at most in a combination, before all of them are combined
_ENOUGH_FITTING = 3  # combinations that fit, enough to choose from
_MAX_TRIES = 8  # combinations tried
_MIN_REDUCTION = (
    0.99  # fraction of the previous peak; a plan that frees less is not increased further
)


def try_plans(
    attempt: Attempt,
    size: int,
    *,
    mesh: Sequence[int] = (),
    others: Sequence[str] = (),
) -> list[Trial]:
    """Rehearse with plans: the unchanged script, each plan alone, and some combinations.

    A plan with a size, such as micro-batches, is increased until it fits or frees no more memory.
    The effect of a combination is predicted from the effects of its plans. The cheapest
    combinations that should fit are rehearsed, until three of them do. If none fits, all plans are
    combined.

    Args:
        attempt: rehearses with some changes; returns None if the script fails with them.
        size: bytes of memory of a device.
        mesh: sizes of the program's mesh, innermost last.
        others: changes that `attempt` supports besides `plans()`.

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
    """Yield trials of each plan alone, as long as it frees more memory than the previous one."""
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
    missed = 1.0  # largest ratio of an actual peak to its prediction
    for foretold in sorted(_predictions(alone, plain), key=lambda each: cost(each, plain)):
        if tried == _MAX_TRIES or len(fitting) == enough:
            break
        changes = set(foretold.changes)
        if foretold.peak_bytes * missed > size or any(less < changes for less in fitting):
            continue  # it is predicted not to fit, or a subset of it fits
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
    """Combine the strongest plan of each kind; if that fits, drop plans that are not needed."""
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
    """Yield predictions for combinations of plans of different kinds.

    Each plan is assumed to scale the memory of each role as it does alone.
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
    """Return the first number scaled by the ratio of each other number to it."""
    before, *after = numbers
    return round(before * prod(each / before for each in after)) if before else max(after)


def _by_kind(alone: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """Return the trials by kind of plan, with the kind that frees most first."""
    kinds: dict[str, list[Trial]] = {}
    for each in alone:
        kinds.setdefault(kind_of(each.name), []).append(each)
    return sorted(kinds.items(), key=lambda row: row[1][-1].peak_bytes)
