"""One run of backward while recording: the graph before it, the gradients during it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .gradients import Gradients
from .graph import Graph
from .modules import Modules
from .tracer import GradFn, _walk, read
from .transfers import Seen

End = tuple[GradFn, int]  # a live node and the number of its output
_NO_NUMBER = 2**63  # an accumulator's sequence number lies beyond


class Run:
    """A graph that was read while its nodes were alive, and what backward then did.

    Args:
        ends: what backward starts from.
        named: names and tensors; the first of a node wins.
        parameters: names of the model's parameters, by `id()`.
        position: the number of this run in its recording.
    """

    def __init__(
        self,
        ends: list[End],
        named: list[tuple[str, Tensor]],
        parameters: dict[int, str],
        position: int,
    ) -> None:
        fns = _walk([fn for fn, _ in ends])
        self.position = position
        self.ids: dict[GradFn, int] = {fn: i for i, fn in enumerate(fns)}  # while it runs
        self.graph: Graph = read(fns, ends, named)
        self.parameters: dict[int, str] = {}  # of the leaves that are parameters of the model
        self._by_number: dict[int, int] = {}
        for i, fn in enumerate(fns):
            if type(fn).__name__ == "AccumulateGrad":
                name = parameters.get(id(fn.variable))
                if name is not None:
                    self.parameters[i] = name
            else:
                self._by_number[fn._sequence_nr()] = i
        self._gradients: Gradients | None = None
        self._ended: Callable[[], None] | None = None

    def start(self, asked: list[End], described: bool, ended: Callable[[], None]) -> None:
        """Hook every node. `asked`: the inputs of `autograd.grad`, in order."""
        self._asked = asked
        self._ended = ended
        if described:
            self._gradients = Gradients(list(self.ids))
            self._gradients.__enter__()

    def finish(self, gradients: Any = None) -> None:
        """Remove the hooks and hold no live node any more."""
        if self._gradients is not None:
            for (fn, output_nr), gradient in zip(self._asked, gradients or (), strict=False):
                # The engine hands these out without running their nodes.
                if fn in self.ids:
                    self._gradients.add(self.ids[fn], output_nr, gradient)
            self._gradients.__exit__()
        self.ids.clear()
        self._asked = []
        if self._ended is not None:
            self._ended()

    def columns(self, modules: Modules) -> dict[str, dict[int, Any]]:
        """What is known of the nodes, for `Graph.annotate`."""
        columns: dict[str, dict[int, Any]] = {"module": {}, "scope": {}, "source": {}}
        for i, row in zip(self._by_number.values(), modules.found(self._by_number), strict=True):
            columns["module"][i], columns["scope"][i], columns["source"][i] = row
        for i, name in self.parameters.items():
            columns["module"][i] = columns["scope"][i] = name.rpartition(".")[0]
        if self._gradients is not None:
            columns["grad_outputs"] = self._gradients.statistics(
                {node.id: len(node.outputs) for node in self.graph.nodes}
            )
            columns["seconds"] = self._gradients.seconds()
            columns["order"] = {node: k for k, node in enumerate(self._gradients.order)}
        return columns

    def node_of(self, seen: Seen) -> int | None:
        """The node that a copy belongs to: what backward was running, or what it made."""
        if seen.run >= 0:
            return seen.node if seen.run == self.position else None
        copies = (self._by_number.get(number) for number in seen.numbers)
        return next((i for i in copies if i is not None), None)
