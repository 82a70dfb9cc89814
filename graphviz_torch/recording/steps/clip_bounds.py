"""What clipping leaves of the gradients' norm, each time: is its bound ever reached, or always?

`clip_grad_norm_` and `clip_grads_with_norm_` compute the share and clamp it at 1: that call tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from ...graph import Graph
from ...graph.events.idle_calls import ClipBound
from ...internals.frames import clipper
from ...internals.functions import TensorBase
from ...internals.guards import no_autograd
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.tensors.memory import has_memory
from ..backward import Backward
from ..listener import Listener
from ..program import Program
from ..program.source_lines import Place

_FILE = clip_grad.__file__
_ENOUGH = 5  # times that a line clips
_MOST = 64  # shares of a line that are remembered
_LOW, _HIGH = 0.1, 100.0  # in the median; and each time


class ClipBounds(Listener):
    """Notes a bound that shortens every gradient to a small part, or is far above all of them."""

    needs = ("every_call",)
    functions = frozenset((torch.clamp,))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # By the line that clips, and the function that it calls.
        self._shares: dict[tuple[Place | None, str], list[float | Tensor]] = {}

    def called(self, event: Called) -> None:
        if event.frame.f_code.co_filename != _FILE or not has_memory(event.args[0]):
            return
        share = event.args[0]
        key = self.program.place(event.frame), clipper(event.frame)
        shares = self._shares.setdefault(key, [])
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            # A number of the library's own, that nothing else holds.
            shares.append(TensorBase.item(share) if share.is_cpu else TensorBase.detach(share))
        del shares[:-_MOST]

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        for (place, name), shares in self._shares.items():
            if len(shares) < _ENOUGH:
                continue
            with unseen_calls(), unseen(), unseen_operators():
                shares[:] = [s if isinstance(s, float) else TensorBase.item(s) for s in shares]
            numbers = [share for share in shares if isinstance(share, float)]
            middle = median(numbers)
            if (max(numbers) < 1 and middle < _LOW) or min(numbers) > _HIGH:
                bound = ClipBound(function=name)
                self.events.note(bound, place, count=len(numbers), share=middle)

    def close(self) -> None:
        self._shares = {}
