"""The first result of a forward that is not finite, looked for while it runs.

Every result that has a node is added up: the sum is finite if all elements are, and only where it
is not the elements are looked at. On other devices than the CPU the sums stay there until the next
backward, which waits for one copy of them, and tell neither NaN from Inf nor what overflows. Not
looked at: what has no values (meta, fake), sparse and nested results.

The first result with NaN and the first with Inf are noted: a mask has -Inf on purpose.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.guards import (
    no_autograd,
    no_functions,
    no_operators,
    set_grad_enabled,
    watched_operators,
)
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..gradients.cpu import sums_up
from ..listener import BackwardBegan, Columns
from ..program import Program
from .nonfinite import NonfiniteValues


class FiniteResults(NonfiniteValues):
    """Looks at the results of calls that made nodes, and at the graph where one was not finite."""

    needs = ("light",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._notes: dict[int, str] = {}  # of the step, by the sequence number of the node
        self._missing = {"NaN", "Inf"}  # what no result has had so far
        self._sums: list[tuple[int, Tensor]] = []  # on other devices
        self._seen = False  # was any of this forward not finite

    def called(self, event: Called) -> None:
        _, _, _, result, _, start, end = event
        if end == start or not self._missing:
            return
        enabled = torch.is_grad_enabled()
        set_grad_enabled(False)  # no graph is to see it
        try:
            if type(result) is Tensor and not watched_operators():  # as most
                self._look(end - 1, result)
            else:
                with no_operators():
                    for tensor in tensors(result):
                        self._look(end - 1, tensor)
        except Exception:  # of a kind that PyTorch cannot add up
            pass
        finally:
            set_grad_enabled(enabled)

    def backward_began(self, event: BackwardBegan) -> None:
        self._sum_up()
        if self._seen:
            super().backward_began(event)
        self._missing, self._seen = {"NaN", "Inf"}, False  # the next forward is looked at anew

    def step_ended(self, event: None) -> None:
        super().step_ended(event)
        self._notes = {}

    def columns(self, backward: Backward) -> Columns:
        self._sum_up()
        found = {backward.node(number): text for number, text in self._notes.items()}
        return {"note": {node: text for node, text in found.items() if node is not None}}

    def _sum_up(self) -> None:
        """Note what is known on other devices."""
        sums, self._sums = self._sums, []
        with no_functions(), no_operators(), no_autograd():
            for device in dict.fromkeys(total.device for _, total in sums):
                there = [each for each in sums if each[1].device == device]
                totals = TensorBase.tolist(torch.stack([total for _, total in there]))  # one copy
                bad = [i for i, total in enumerate(totals) if not math.isfinite(total)]
                for i in bad[:1]:
                    self._say(there[i][0], "the first result that is not finite")

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
                    of = TensorBase.numel(tensor)
                    self._say(number, f"the first result with {name}: {count} of {of}")

    def _say(self, number: int, text: str) -> None:
        self._seen = True
        before = self._notes.get(number)
        self._notes[number] = f"{before}; {text}" if before else text
