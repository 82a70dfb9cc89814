"""Repeats in a sequence: where the same body of tokens follows itself at least three times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby, islice
from operator import eq
from typing import NamedTuple

# Tokens that must agree before a distance is taken for a period: long enough that a pair of
# operations which returns inside a body is not taken for the body.
_GRAM = 8
_CANDIDATES = 6
_LEAST_TIMES = 3


class Repeat(NamedTuple):
    """`length` tokens from `start` of which each equals the one `period` before it."""

    start: int
    period: int
    length: int


def find_repeats(tokens: Sequence[Hashable], *, shortest: int = 100) -> list[Repeat]:
    """The repeats of a sequence, apart from each other, in order.

    The longest is found first, then what lies before and behind it is searched while it is longer
    than `shortest`.

    >>> find_repeats("xyz" + "abcde" * 4 + "z", shortest=8)
    [Repeat(start=3, period=5, length=20)]
    """
    found = []
    left = [(0, len(tokens))]
    while left:
        start, end = left.pop()
        best = _longest(tokens[start:end], shortest) if end - start > shortest else None
        if best is not None:
            first = start + best.start
            found.append(Repeat(first, best.period, best.length))
            left += [(start, first), (first + best.length, end)]
    return sorted(found)


def _longest(tokens: Sequence[Hashable], shortest: int) -> Repeat | None:
    last: dict[Hashable, int] = {}
    distances: Counter[int] = Counter()
    grams = zip(*(islice(tokens, shift, None) for shift in range(_GRAM)), strict=False)
    for position, gram in enumerate(grams):
        if gram in last:
            distances[position - last[gram]] += 1
        last[gram] = position
    best = None
    for period, _ in distances.most_common(_CANDIDATES):
        position = 0
        for same, run in groupby(map(eq, tokens, islice(tokens, period, None))):
            length = sum(1 for _ in run)
            if same and length >= (_LEAST_TIMES - 1) * period:
                repeat = Repeat(position, period, length + period)
                if best is None or (repeat.length, -period) > (best.length, -best.period):
                    best = repeat
            position += length
        if best is not None and best.length > len(tokens) - shortest:
            break  # what is left is too short to be of interest
    return best
