"""A listener that notes events, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from ...graph import Graph
from ..backward import Backward
from ..listener import Listener
from ..program import Program
from .events import Events


class NotingListener(Listener):
    """Gives each graph the events that it noted until that graph's backward began.

    It is left out where a recording asks as little as it can.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.events = Events()

    def step_ended(self, event: None) -> None:
        self.events.begin_step()

    def complete(self, graph: Graph, backward: Backward) -> Graph:
        if not self.events:
            return graph
        line = self.program.line()
        events = self.events.until(
            backward.position + 1,
            backward.node,
            backward.reading.leaves.get,
            line,
            self.program.source_in(line),
        )
        return replace(graph, events=(*graph.events, *events))
