"""Which weights the steps change no more, though they have gradients, and since when.

A weight that a step left as it was is looked at in the next steps, too. If they leave it, all
others are looked at once: what has one cause is told once.

    in turn ─► a suspect, in each step ─► all others, one in each step ─► told
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SURE = 20  # steps in a row


class Still(NamedTuple):
    """Weights that no longer change, since a step between two."""

    parameters: list[int]
    since: tuple[int, int]  # the last step that changed one, the first that did not
    all_of_them: bool


class Stillness:
    """Samples of weights before and after steps."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}  # the last step that did, by parameter
        self._suspect: int | None = None
        self._first = 0  # step that left the suspect as it was
        self._count = 0  # of them
        self._others: list[int] = []  # to be looked at yet
        self._still: list[int] = []
        self._looked_at = 0
        self._told: set[int] = set()

    def wanted(self, own: Sequence[int]) -> int | None:
        """Return the optimizer's weight to sample now; None: the next in turn."""
        if self._suspect is None or self._suspect not in own:
            return None
        return self._others[-1] if self._others else self._suspect

    def sample(
        self, step: int, parameter: int, own: Sequence[int], *, still: bool, judged: bool
    ) -> Iterator[Still]:
        """Note whether a step left a weight unchanged.

        Args:
            own: the weights of its optimizer.
            judged: has it a gradient, and a rate to be changed by.
        """
        if not still:
            self._changed[parameter] = step
            self._told.discard(parameter)
        if self._suspect is None:
            if still and judged and parameter not in self._told:
                self._suspect, self._first, self._count = parameter, step, 1
        elif parameter == self._suspect and not self._still:
            self._count = self._count + 1 if still and judged else 0
            if not self._count:
                self._suspect = None
            elif self._count == _SURE:
                self._others = [i for i in own if i != parameter]
                self._still, self._looked_at = [parameter], len(self._others)
                if not self._others:
                    yield self._found()
        elif self._others and parameter == self._others[-1]:
            self._others.pop()
            if still and judged:
                self._still.append(parameter)
            if not self._others:
                yield self._found()

    def skip(self, parameter: int) -> Iterator[Still]:
        """Note that a requested weight cannot be sampled."""
        if self._others and parameter == self._others[-1]:
            self._others.pop()
            self._looked_at -= 1
            if not self._others:
                yield self._found()

    def _found(self) -> Still:
        still, suspect = self._still, self._suspect
        everything = len(still) == self._looked_at + 1
        known = self._changed.values() if everything else [self._changed.get(i, -1) for i in still]
        last = max((step for step in known if step < self._first), default=-1)
        self._told.update(still)
        self._suspect, self._still = None, []
        return Still(sorted(still), (last, self._first), everything and suspect is not None)
