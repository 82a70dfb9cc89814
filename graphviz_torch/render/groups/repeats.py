"""Repeats in a sequence: a body of tokens that occurs at least three times in a row.

The first occurrence may lack its beginning.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice
from operator import eq
from typing import NamedTuple

# Tokens that must match for a distance to be a candidate period. More than a pair of operations,
# which may recur inside a body.
_MATCH_LENGTH = 8
_SEARCH_STEP = 4  # tokens between the starts of two searches
_MAX_CANDIDATES = 6  # periods to check
_MAX_LACKING = 0.25  # of the first body: the first step of a loop has no step before to read from
MIN_TIMES = 3


class Repeat(NamedTuple):
    """`length` tokens from `start`; each equals the one `period` before it."""

    start: int
    period: int
    length: int


def find_repeats(tokens: Sequence[Hashable], *, shortest: int = 100) -> list[Repeat]:
    """Return the repeats of a sequence, disjoint and in order.

    The longest is found first; the ranges before and after it are searched while longer than
    `shortest`.

    >>> find_repeats("xyz" + "abcde" * 4 + "z", shortest=8)
    [Repeat(start=3, period=5, length=20)]
    """
    # Encode each distinct token as a character: strings are searched fast. From the 1,114,112th on,
    # distinct tokens share the last character.
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
    for place in range(0, len(text) - _MATCH_LENGTH, _SEARCH_STEP):
        again = text.find(text[place : place + _MATCH_LENGTH], place + 1)
        if again > 0:
            distances[again - place] += 1
    best = None
    for period, _ in distances.most_common(_MAX_CANDIDATES):
        same = bytes(map(eq, text, islice(text, period, None)))
        run = max(same.split(b"\0"), key=len)
        if len(run) < (MIN_TIMES - 1 - _MAX_LACKING) * period:
            continue
        repeat = Repeat(same.index(run), period, len(run) + period)
        if best is None or (repeat.length, -period) > (best.length, -best.period):
            best = repeat
        if best.length > len(text) - shortest:
            break  # the rest is too short for another repeat
    return best
