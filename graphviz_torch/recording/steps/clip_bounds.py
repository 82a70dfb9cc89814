"""What clipping leaves of the gradients, each time: is its bound ever reached, or always?

`clip_grad_norm_` and `clip_grads_with_norm_` compute the share of the norm and clamp it at 1: that
call tells. `clip_grad_value_` cuts values: its bound is compared with their largest size and with
their mean one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from ...graph import Graph
from ...graph.events.idle_calls import ClipBound
from ...internals.frames import clipper
from ...internals.functions import CUT_BELOW, TensorBase
from ...internals.guards import no_autograd
from ...internals.hooks.calls import Called, Calling
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
    """Notes a bound that leaves a small part of every gradient, or is far above all of them."""

    needs = ("every_call",)
    functions = frozenset((torch.clamp, CUT_BELOW))
    before = frozenset((CUT_BELOW,))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # By the line that clips, and the function that it calls.
        self._shares: dict[tuple[Place | None, str], list[float | Tensor]] = {}
        # The same of a bound for values: of the largest, and of their mean.
        self._sizes: dict[tuple[Place | None, str], list[Tensor]] = {}

    def calling(self, event: Calling) -> None:
        if event.frame.f_code.co_filename != _FILE:
            return
        grads, bound = event.args
        if not all(map(has_memory, grads)):
            return
        key = self.program.place(event.frame), clipper(event.frame)
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            norm = torch.linalg.vector_norm
            largest = torch.stack([norm(each, math.inf, dtype=torch.float32) for each in grads])
            total = torch.stack([norm(each, 1, dtype=torch.float32) for each in grads]).sum()
            mean = total / sum(map(TensorBase.numel, grads))
            sizes = self._sizes.setdefault(key, [])
            sizes.append(-bound / torch.stack([largest.max(), mean]))
        del sizes[:-_MOST]

    def called(self, event: Called) -> None:
        if event.func is CUT_BELOW or event.frame.f_code.co_filename != _FILE:
            return
        if not has_memory(event.args[0]):
            return
        share = event.args[0]
        key = self.program.place(event.frame), clipper(event.frame)
        shares = self._shares.setdefault(key, [])
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            # A number of the library's own, that nothing else holds.
            shares.append(TensorBase.item(share) if share.is_cpu else TensorBase.detach(share))
        del shares[:-_MOST]

    def _judge(self, key: tuple[Place | None, str], low: list[float], high: list[float]) -> None:
        """Note a bound that is always reached, by the share `low`, or never, by that of `high`."""
        place, name = key
        if len(low) >= _ENOUGH and max(low) < 1 and median(low) < _LOW:
            self.events.note(ClipBound(function=name), place, count=len(low), share=median(low))
        elif len(high) >= _ENOUGH and min(high) > _HIGH:
            self.events.note(ClipBound(function=name), place, count=len(high), share=median(high))

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        for key, shares in self._shares.items():
            with unseen_calls(), unseen(), unseen_operators():
                shares[:] = [s if isinstance(s, float) else TensorBase.item(s) for s in shares]
            numbers = [share for share in shares if isinstance(share, float)]
            self._judge(key, numbers, numbers)
        for key, sizes in self._sizes.items():
            with unseen_calls(), unseen(), unseen_operators():
                every = [TensorBase.tolist(pair) for pair in sizes]
            pairs = [pair for pair in every if all(map(math.isfinite, pair))]
            self._judge(key, [mean for _, mean in pairs], [largest for largest, _ in pairs])

    def close(self) -> None:
        self._shares, self._sizes = {}, {}
