"""Find weights that no longer change although they have gradients, and when they last changed.

From time to time one weight is sampled before and after a step. If the step left it unchanged, it
is the suspect, and is sampled at each of the following steps. If it stays unchanged, all other
weights are sampled, one per step, so that one report contains all weights with the same cause.

    weights in turn ─► one suspect, at each step ─► all others, one per step ─► report
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SURE_STEPS = 20  # consecutive steps in which the suspected parameter did not change


class FrozenGroup(NamedTuple):
    """Weights that no longer change."""

    parameters: list[int]
    # The last step known to have changed one of them, the first known to have changed none.
    since: tuple[int, int]
    all_of_them: bool  # True if all weights of the optimizer are in the group


class FrozenWeights:
    """The state of the search for weights that no longer change."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}  # last step that changed a parameter
        self._suspect: int | None = None
        self._first = 0  # first step that left the suspect unchanged
        self._count = 0  # number of consecutive steps that left the suspect unchanged
        self._others: list[int] = []  # other weights that are not sampled yet
        self._unchanged: list[int] = []  # weights found unchanged
        self._looked_at = 0  # number of other weights that can be sampled
        self._reported: set[int] = set()  # unchanged weights that were reported

    def next_weight(self, own: Sequence[int]) -> int | None:
        """Return the weight to sample now, among an optimizer's weights; None: any weight."""
        if self._suspect is None or self._suspect not in own:
            return None
        return self._others[-1] if self._others else self._suspect

    def sample(
        self, step: int, parameter: int, own: Sequence[int], *, still: bool, judged: bool
    ) -> Iterator[FrozenGroup]:
        """Record whether a step left a weight unchanged, and yield the unchanged weights when the
        search ends.

        Args:
            step: number of the optimizer step.
            parameter: the sampled weight, by its position in the model.
            own: all weights of the optimizer that stepped, by position.
            still: True if the sampled values are unchanged.
            judged: True if the step should have changed the weight: it has a gradient, and the
                learning rate has not decayed.
        """
        if not still:
            self._changed[parameter] = step
            self._reported.discard(parameter)
        if self._suspect is None:
            if still and judged and parameter not in self._reported:
                self._suspect, self._first, self._count = parameter, step, 1
        elif parameter == self._suspect and not self._unchanged:
            self._count = self._count + 1 if still and judged else 0
            if not self._count:
                self._suspect = None
            elif self._count == _SURE_STEPS:
                self._others = [i for i in own if i != parameter]
                self._unchanged, self._looked_at = [parameter], len(self._others)
                if not self._others:
                    yield self._found()
        elif self._others and parameter == self._others[-1]:
            self._others.pop()
            if still and judged:
                self._unchanged.append(parameter)
            if not self._others:
                yield self._found()

    def skip(self, parameter: int) -> Iterator[FrozenGroup]:
        """Handle that the weight from `next_weight` cannot be sampled."""
        if self._others and parameter == self._others[-1]:
            self._others.pop()
            self._looked_at -= 1
            if not self._others:
                yield self._found()

    def _found(self) -> FrozenGroup:
        still, suspect = self._unchanged, self._suspect
        everything = len(still) == self._looked_at + 1
        known = self._changed.values() if everything else [self._changed.get(i, -1) for i in still]
        last = max((step for step in known if step < self._first), default=-1)
        self._reported.update(still)
        self._suspect, self._unchanged = None, []
        return FrozenGroup(sorted(still), (last, self._first), everything and suspect is not None)
