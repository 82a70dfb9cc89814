"""The first NaN or Inf of each forward, as an event: where there is any, birth.py finds its node.

Looked at when backward begins, while the nodes are alive: what they keep, and what backward starts
from. On the CPU one reduction for all tells whether there is any; only then is each looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...graph import Graph
from ...graph.events import NonfiniteValue
from ...internals.guards import no_autograd
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.tensors.memory import all_readable, is_at_hand, readable
from ...internals.tensors.saved_tensors import TELLS
from ...tracing.nodes import GradFn
from ..backward import Backward
from ..gradients.cpu import each_finite
from ..listener import BackwardBegan, Listener
from ..program import Program
from ..program.events import NodeLine
from .birth import Birth, Look, read


class NonfiniteValues(Listener):
    """Notes the first NaN or Inf of each forward, until a loss is not finite: the rest follows."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._looks: list[tuple[int, bool, Look]] = []  # backwards so far, is the loss scaled
        self._in_loss = False

    def backward_began(self, event: BackwardBegan) -> None:
        """Has the forward made NaN or Inf?"""
        live = event.live
        if self._in_loss:
            return
        found = look(live.ids, event.outputs, live.memory.activations)
        if found is not None:
            scaled = live.call.loss_scale is not None
            self._looks.append((self.events.backwards, scaled, found))
            if not any(each.flags for _, _, each in self._looks):
                self._conclude()

    def step_ended(self, event: None) -> None:
        """What the loss of a step was says nothing of the next one's."""
        self._looks, self._in_loss = [], False

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Note what is known on the devices."""
        self._conclude()

    def _conclude(self) -> None:
        looks, self._looks = self._looks, []
        if looks:
            read([found for _, _, found in looks])
        for backwards, scaled, found in looks:
            birth = None if self._in_loss else found.birth()
            # A scaled loss may overflow: the scaler skips that step.
            if birth is not None and not (scaled and birth.nan == 0):
                self._in_loss = birth.in_loss
                self._note(birth, backwards)

    def _note(self, birth: Birth, backwards: int) -> None:
        event = NonfiniteValue(
            # Of what backward starts from alone it is not known that this made it.
            operation=birth.operation if TELLS else "",
            nan=birth.nan,
            inf=birth.inf if (birth.nan, birth.inf) != (0, 0) else None,
            origin=birth.origin,
            reason=birth.reason,
            in_loss=birth.in_loss,
        )
        line = NodeLine(birth.number)
        self.events.note(event, numbers=[birth.number], since=backwards, where=line)


def look(
    fns: Iterable[GradFn], outputs: Iterable[Any], activations: Iterable[Tensor]
) -> Look | None:
    """Look at what a backward starts from; None where all is finite, or nothing can be read.

    Args:
        fns: live nodes, inputs before users.
        outputs: what backward starts from.
        activations: what the nodes keep, parameters left out.
    """
    with unseen_calls(), unseen_operators(), unseen():
        given = [tensor for tensor in outputs if isinstance(tensor, Tensor)]
        losses = [(tensor.grad_fn, one) for tensor in given for one in readable(tensor)]
        with no_autograd():
            values = [*all_readable(activations), *(one for _, one in losses)]
            if all(is_at_hand(one) for one in values) and each_finite(values):
                return None
            if any(one.is_cuda for one in values) and torch.cuda.is_current_stream_capturing():
                return None  # what we do on the device would become a part of the CUDA graph
        with torch.no_grad():
            return Look(list(fns), losses)
