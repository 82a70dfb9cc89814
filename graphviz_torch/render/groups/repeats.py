"""Find repetitions in a sequence: a "body" of tokens that follows itself three or more times.

The first occurrence may lack tokens at the beginning of the body.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice
from operator import eq
from typing import NamedTuple

# If this many consecutive tokens occur twice, the distance between the two occurrences is a
# candidate for the period. A shorter sequence, such as a pair of operations, may occur twice inside
# one body.
_MATCH_LENGTH = 8
_SEARCH_STEP = 4  # distance of the positions at which a search for recurring tokens starts
_MAX_CANDIDATES = 6  # maximum number of candidate periods to check
# Maximum fraction of the body that may be missing in the first occurrence. For example, the first
# step of a loop lacks the operations that read an earlier step.
_MAX_LACKING = 0.25
MIN_TIMES = 3


class Repeat(NamedTuple):
    """A repetition of a body of `period` tokens: `length` tokens, from index `start` on."""

    start: int
    period: int
    length: int


def find_repeats(tokens: Sequence[Hashable], *, shortest: int = 100) -> list[Repeat]:
    """Return the repetitions in a sequence, in order and without overlaps.

    The search first finds the longest repetition. Then it continues in the tokens before and the
    tokens after this repetition, if there are more than `shortest` of them.

    >>> find_repeats("xyz" + "abcde" * 4 + "z", shortest=8)
    [Repeat(start=3, period=5, length=20)]
    """
    # Each distinct token becomes a character, because searching a string is fast. If there are more
    # distinct tokens than characters (1,114,112), the remaining tokens share the last character.
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
            break  # the remaining tokens are too few for another repetition
    return best
