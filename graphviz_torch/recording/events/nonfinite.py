"""The first NaN or Inf of each forward, as an event: what birth.py finds of its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Graph
from ...graph.events import NonfiniteValue
from ...internals.tensors.saved_tensors import TELLS
from ..backward import Backward
from ..listener import Listener, RunBegan
from ..program import Program
from ..program.events import NodeLine
from .birth import Birth, Look, look, read


class NonfiniteValues(Listener):
    """Notes the first NaN or Inf of each forward, until a loss is not finite: the rest follows."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._looks: list[tuple[int, bool, Look]] = []  # backwards so far, is the loss scaled
        self._in_loss = False

    def backward_began(self, event: RunBegan) -> None:
        """Has the forward made NaN or Inf?"""
        live = event.live
        # A light recording has looked at results as they were made, but for what has a note.
        if self._in_loss or (self.program.options.light and not live.notes):
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
