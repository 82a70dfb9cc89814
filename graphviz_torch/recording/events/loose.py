"""Parameters that no module owns and no optimizer holds: do they stay as they are?

A few values of each are kept from the step in which it first got a gradient, and compared in later
ones, where a step is over: so no device is waited for in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.guards import no_autograd
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.tensors.memory import PLAIN, may_be_read
from ...internals.tensors.weak import Ref

_MOST = 64  # parameters that are remembered
_ELEMENTS = 64  # of each


@dataclass(slots=True)
class _Loose:
    parameter: Ref
    before: Tensor  # its first values, in the step in which it was met first
    name: str
    steps: int = 0  # in which it was met
    is_new: bool = True  # since the last step


class LooseParameters:
    """Knows those that backwards reached, by weak references."""

    def __init__(self) -> None:
        self._known: dict[int, _Loose] = {}  # by id()

    def meet(self, parameter: Tensor, name: str) -> None:
        """A backward reaches this one, which the program calls so."""
        known = self._known.get(id(parameter))
        if known is None or known.parameter() is not parameter:
            if len(self._known) == _MOST or not may_be_read(parameter):
                return
            with unseen_calls(), unseen(), unseen_operators(), no_autograd():
                known = _Loose(Ref(parameter), torch.clone(_first(parameter)), name)
            self._known[id(parameter)] = known
        if known.is_new:
            known.steps, known.is_new = known.steps + 1, False

    def met(self) -> Iterator[tuple[int, str, int]]:
        """Those that a backward of this step reached: id(), name, and in how many steps one did.

        0 steps where its values have changed meanwhile.
        """
        for key, known in self._known.items():
            parameter = known.parameter()
            if parameter is None or known.is_new:
                continue
            same = type(parameter) in PLAIN and may_be_read(parameter)
            if same and known.steps > 1:
                with unseen_calls(), unseen(), unseen_operators(), no_autograd():
                    same = torch.equal(_first(parameter), known.before)
            yield key, known.name, known.steps if same else 0

    def step_ended(self) -> None:
        """The next backward is of another step."""
        there = {k: known for k, known in self._known.items() if known.parameter() is not None}
        self._known = there
        for known in there.values():
            known.is_new = True


def _first(parameter: Tensor) -> Tensor:
    values = TensorBase.detach(parameter)
    number = min(TensorBase.numel(values), _ELEMENTS)
    return TensorBase.reshape(values, (-1,))[:number]
