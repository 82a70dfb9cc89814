"""Find weights that no longer change although they have gradients, and when they last changed.

The search samples weights, that is, it compares their values before and after a step:

1. At intervals of several steps, one weight is sampled. If the step left the weight unchanged, this
   weight becomes the suspect.
2. The suspect is sampled at each step. If it changes, it is no longer suspected.
3. If the suspect stays unchanged, all other weights are sampled, one per step. One report then
   contains all unchanged weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SURE_STEPS = 20  # number of steps in which the suspect is sampled before the other weights


class FrozenGroup(NamedTuple):
    """A group of weights that no optimizer step changes any more."""

    parameters: list[int]
    # The last step known to have changed one of the weights, and the first step known to have
    # changed none of them.
    since: tuple[int, int]
    all_of_them: bool  # True if the group contains all weights of the optimizer


class FrozenWeights:
    """The state of the search for weights that no longer change."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}  # weight -> last step known to have changed it
        self._suspect: int | None = None
        self._first = 0  # first step that left the suspect unchanged
        self._count = 0  # number of consecutive steps that left the suspect unchanged
        self._others: list[int] = []  # weights besides the suspect that were not sampled yet
        self._unchanged: list[int] = []  # weights found unchanged, beginning with the suspect
        self._looked_at = 0  # number of weights besides the suspect that can be sampled
        self._reported: set[int] = set()  # unchanged weights that were reported

    def next_weight(self, own: Sequence[int]) -> int | None:
        """Return the weight that the search has to sample at this step.

        The result is None if there is no suspect among these weights of an optimizer.

        Args:
            own: indices of the optimizer's weights in the model.
        """
        if self._suspect is None or self._suspect not in own:
            return None
        return self._others[-1] if self._others else self._suspect

    def sample(
        self, step: int, parameter: int, own: Sequence[int], *, still: bool, judged: bool
    ) -> Iterator[FrozenGroup]:
        """Record whether a step left a weight unchanged.

        Args:
            step: number of the optimizer step.
            parameter: index of the sampled weight in the model.
            own: indices of all weights of the optimizer that stepped.
            still: True if the sampled values are unchanged.
            judged: True if the step should have changed the weight, because the weight has a
                gradient and the learning rate has not decayed.

        Yields:
            The unchanged weights, when the search ends.
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
        """Skip a weight that cannot be sampled; if the search ends, yield the unchanged weights."""
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
