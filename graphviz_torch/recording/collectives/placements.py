"""Record the DTensor placements of each node's outputs.

Placements are read when a call into torch takes or returns a DTensor. A DTensor that no observed
call takes or returns has no recorded placement, such as the one between two redistributions that
directly follow each other. Placements are not recorded in a process that torchrun did not start and
that creates its process group inside the block.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...internals.hooks.calls import Called
from ...internals.sharding import placement
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..listener import Columns, Listener
from ..live import LiveGraph, leaves_of
from ..program import Program


class Placements(Listener):
    """Listener that records the placements of DTensors."""

    needs = ("is_distributed",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._made: dict[int, str] = {}  # sequence number of the tensor's node -> placement
        # Index of a graph -> node id of a leaf -> placement.
        self._leaves: dict[int, dict[int, str]] = {}

    def on_call_end(self, event: Called) -> None:
        for tensor in tensors((event.args, event.kwargs or {}, event.result)):
            if type(tensor) is not Tensor and tensor.grad_fn is not None:
                text = placement(tensor)
                if text:
                    self._made[_number(tensor)] = text

    def on_graph_read(self, live: LiveGraph) -> None:
        texts = {live.ids[fn]: placement(fn.variable) for fn in leaves_of(live.own)}
        self._leaves[live.position] = {node: text for node, text in texts.items() if text}

    def on_step_end(self, event: None) -> None:
        self._made, self._leaves = {}, {}

    def node_columns(self, backward: Backward) -> Columns:
        found: dict[int, Any] = dict(self._leaves.get(backward.position, {}))
        for number, text in self._made.items():
            node = backward.node(number)
            if node is not None:
                found[node] = text
        return {"placement": found}


def _number(tensor: Tensor) -> int:
    number: int = tensor.grad_fn._sequence_nr()  # type: ignore[union-attr]
    return number
