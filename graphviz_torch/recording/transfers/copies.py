"""Where in the program each copy between devices was made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ...graph import Graph, Transfer
from ...internals.frames import user_frame
from ...internals.hooks.calls import Called, under_way
from ...internals.hooks.dispatch import Dispatched
from ...internals.hooks.engine import running_node
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..listener import Listener, RunBegan, RunEnded
from ..live import LiveGraph
from ..program import Program
from ..program.tracking import name_of
from .operators import OPERATORS
from .profiler import Memcpy, match
from .transfers import CopyRecord, Transfers


class Copies(Listener):
    """The copies of a recording, each with its line, its module and its node."""

    needs = ("transfers",)

    operators = OPERATORS

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._unmatched: list[Transfer] = []  # copies that only the profiler has seen
        self._made: list[tuple[Tensor, CopyRecord]] = []  # by the call that is running
        self._transfers = Transfers()
        self._live: LiveGraph | None = None  # the backward that runs
        self._backwards = 0  # that have begun

    def copies_timed(self, event: Sequence[Memcpy]) -> None:
        """The profiler has seen these copies, and how long they took."""
        self._unmatched = match(self._transfers.records, event)

    def backward_began(self, event: RunBegan) -> None:
        self._live = event.live
        self._backwards += 1

    def backward_ended(self, event: RunEnded) -> None:
        self._live = None

    def dispatched(self, event: Dispatched) -> None:
        live = self._live  # read once: another thread's call may find that it has just ended
        fn = running_node()
        ours = {} if live is None else live.ids
        program = self.program
        if not program.is_here() and fn not in ours:
            return  # another recording's; the engine's threads for devices work for this one
        for record, source, made in self._transfers.see(event):
            frame = user_frame(sys._getframe(1))
            # The engine's threads have no frames of the user's.
            place = program.place(frame) or (None if live is None else live.call.place)
            moment = program.origins.moments + self._backwards
            record.locate(place, program.module, program.in_forward, moment)
            if fn is not None:
                record.attach_to_run(self._backwards, ours.get(fn))
            else:
                record.attach_to_call(name_of(under_way()), program.label(source, frame))
                if made is not None:
                    self._made.append((made, record))

    def called(self, event: Called) -> None:
        """Follow the copies that the call made, as far as it returned them."""
        if self._made:
            returned = {id(tensor) for tensor in tensors(event.result)}
            for made, record in self._made:
                if id(made) in returned:
                    self.program.tracker.add(made, record)
            self._made = []

    def step_ended(self, event: None) -> None:
        self._transfers.forget()
        self._backwards = 0

    def complete(self, graph: Graph, backward: Backward) -> Graph:
        line = self.program.line()
        found = [
            copy.transfer(_node(copy, backward), line(copy.place))
            for copy in self._transfers.records
        ]
        # Of the copies that trace reads from the graph alone, those that backward did not run.
        ahead = [
            copy
            for copy in graph.transfers
            if copy.node is None or graph.nodes[copy.node].order is None
        ]
        return replace(graph, transfers=(*found, *ahead, *self._unmatched))


def _node(copy: CopyRecord, backward: Backward) -> int | None:
    """The node that a copy belongs to: what backward was running, or what it made."""
    if copy.run:
        return copy.node if copy.run == backward.position + 1 else None
    return next(iter(backward.made(copy.numbers)), None)
