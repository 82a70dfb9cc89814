"""Repeats in a sequence: where the same body of tokens follows itself at least three times.

The first may lack its beginning.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice
from operator import eq
from typing import NamedTuple

# Tokens that must agree before a distance is taken for a period: long enough that a pair of
# operations which returns inside a body is not taken for the body.
_GRAM = 8
_STEP = 4  # between the places at which a period is looked for
_CANDIDATES = 6
_LACK = 0.25  # of the first body, as a loop's first step has nothing to read from one before it
LEAST_TIMES = 3


class Repeat(NamedTuple):
    """`length` tokens from `start`; each equals the one `period` before it."""

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
    # As a text, which is searched fast: a character for each kind of token. Beyond the 1,114,112
    # characters there are, kinds share the last one.
    known: dict[Hashable, str] = {}
    text = "".join(
        [known.setdefault(token, chr(min(len(known), sys.maxunicode))) for token in tokens]
    )
    found = []
    left = [(0, len(text))]
    while left:
        start, end = left.pop()
        best = _longest(text[start:end], shortest) if end - start > shortest else None
        if best is not None:
            first = start + best.start
            found.append(Repeat(first, best.period, best.length))
            left += [(start, first), (first + best.length, end)]
    return sorted(found)


def _longest(text: str, shortest: int) -> Repeat | None:
    distances: Counter[int] = Counter()
    for place in range(0, len(text) - _GRAM, _STEP):
        again = text.find(text[place : place + _GRAM], place + 1)
        if again > 0:
            distances[again - place] += 1
    best = None
    for period, _ in distances.most_common(_CANDIDATES):
        same = bytes(map(eq, text, islice(text, period, None)))
        run = max(same.split(b"\0"), key=len)
        if len(run) < (LEAST_TIMES - 1 - _LACK) * period:
            continue
        repeat = Repeat(same.index(run), period, len(run) + period)
        if best is None or (repeat.length, -period) > (best.length, -best.period):
            best = repeat
        if best.length > len(text) - shortest:
            break  # what is left is too short to be of interest
    return best
