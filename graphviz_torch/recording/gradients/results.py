"""The first result of a forward that is not finite, looked for while it runs."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.guards import no_autograd, no_functions, no_operators
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import tensors
from ..listener import Listener
from ..live import LiveGraph
from ..program import Program
from .finite import sums_up


class FiniteResults(Listener):
    """Looks at the results of calls that made nodes."""

    needs = ("light",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._notes: dict[int, str] = {}
        self._missing = {"NaN", "Inf"}  # what no result has had so far
        self._sums: list[tuple[int, Tensor]] = []  # on other devices

    def called(self, event: Called) -> None:
        if event.end == event.start or not self._missing:
            return
        number, result = event.end - 1, event.result
        with suppress(Exception), no_functions(), no_operators(), no_autograd():
            if type(result) is Tensor:
                self._look(number, result)
            else:
                for tensor in tensors(result):
                    self._look(number, tensor)

    def graph_read(self, live: LiveGraph) -> None:
        notes = self._take()
        for node, number in enumerate(live.numbers) if notes else ():
            if number in notes:
                live.note(node, notes[number])

    def _take(self) -> dict[int, str]:
        """Notes by the sequence number of the node; the next forward is looked at anew."""
        with no_functions(), no_operators(), no_autograd():
            for number, total in self._sums:
                if not math.isfinite(TensorBase.item(total)):
                    self._notes.setdefault(number, "the first result that is not finite")
                    break
        found, self._notes, self._missing, self._sums = self._notes, {}, {"NaN", "Inf"}, []
        return found

    def _look(self, number: int, tensor: Tensor) -> None:
        if not has_memory(tensor):
            return
        if not tensor.is_cpu:
            self._sums.append((number, torch.sum(tensor, dtype=torch.float32)))
        elif not sums_up(tensor):
            for name in sorted(self._missing):
                is_it = torch.isnan if name == "NaN" else torch.isinf
                count = int(TensorBase.item(torch.sum(is_it(tensor))))
                if count:
                    self._missing.discard(name)
                    text = f"the first result with {name}: {count} of {TensorBase.numel(tensor)}"
                    before = self._notes.get(number)
                    self._notes[number] = f"{before}; {text}" if before else text
