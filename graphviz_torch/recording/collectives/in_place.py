"""Find collectives that change a tensor in place in the middle of a graph, unseen by autograd."""

from __future__ import annotations

import sys

import torch

from ...findings.rules.ranks.in_place import CollectiveInGraph
from ...internals.frames import CodePosition
from ...internals.hooks.collectives.watch import CollectiveIssued
from ...internals.hooks.engine import running_node
from ..listener import BackwardBegan, Listener
from ..live import roots_of
from ..program import Program

_MAX_TENSORS = 256


class CollectivesInGraph(Listener):
    """Listener that reports a collective that changed a result which backward then runs through."""

    needs = ("transfers",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Sequence number of a node -> kind and line of the collective, label of the tensor.
        self._changed: dict[int, tuple[str, CodePosition | None, str]] = {}

    def on_collective(self, event: CollectiveIssued) -> None:
        if len(event.group.ranks) < 2 or not torch.is_grad_enabled() or running_node() is not None:
            return
        frame = sys._getframe(1)
        for tensor in event.filled if self.program.is_here() else ():
            fn = tensor.grad_fn if tensor.requires_grad else None
            if fn is not None and len(self._changed) < _MAX_TENSORS:
                label = self.program.variable(tensor)
                self._changed[int(fn._sequence_nr())] = event.kind, self.program.place(frame), label

    def on_backward_start(self, event: BackwardBegan) -> None:
        if self._changed:
            inner = {*event.live.numbers} - {*roots_of(event.outputs)}
            for number in inner & self._changed.keys():
                kind, place, label = self._changed.pop(number)
                self.events.note(CollectiveInGraph(kind=kind, label=label), place, [number])

    def on_step_end(self, event: None) -> None:
        self._changed = {}
