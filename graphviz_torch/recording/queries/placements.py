"""Record the DTensor placements of each node's outputs.

Placements are read when a call into torch takes or returns a DTensor. A DTensor that no observed
call takes or returns has no recorded placement, such as the one between two redistributions that
directly follow each other. Placements are not recorded in a process that torchrun did not start and
that creates its process group inside the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from ...graph.immutable import NamedTuple
from ...internals.hooks.calls import Called
from ...internals.sharding import placement
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..live import LiveGraph, leaves_of
from ..program import Program
from ..program.log import Query, RowsOf
from ..program.rows import TrainingStepRow
from ..recorder import Columns


class ResultPlacementRow(NamedTuple):
    """The placement of a DTensor that a node computed."""

    number: int  # sequence number of the node
    text: str


class LeafPlacementsRow(NamedTuple):
    """The placements of the leaves of a graph."""

    graph: int  # index of the graph
    texts: dict[int, str]  # by node id


def result_placements(event: Called, program: Program) -> Iterator[ResultPlacementRow]:
    """Yield the placement of each DTensor with a node that a call takes or returns."""
    for tensor in tensors((event.args, event.kwargs or {}, event.result)):
        fn = None if type(tensor) is Tensor else tensor.grad_fn
        if fn is not None and (text := placement(tensor)):
            yield ResultPlacementRow(int(fn._sequence_nr()), text)


def leaf_placements(live: LiveGraph, program: Program) -> Iterator[LeafPlacementsRow]:
    """Yield the placements of the leaves of a graph."""
    texts = {live.ids[fn]: placement(fn.variable) for fn in leaves_of(live.own)}
    yield LeafPlacementsRow(live.position, {node: text for node, text in texts.items() if text})


class Placements(Query):
    """Record the placements of DTensors."""

    needs = ("is_distributed",)
    functions = None
    rows_of: ClassVar[RowsOf] = {
        "on_call_end": result_placements,
        "on_graph_read": leaf_placements,
    }

    def __init__(self) -> None:
        self._results: dict[int, str] = {}  # by sequence number of the node
        self._leaves: dict[int, dict[int, str]] = {}  # by index of the graph, and by node id

    def on_result_placement(self, row: ResultPlacementRow) -> None:
        self._results[row.number] = row.text

    def on_leaf_placements(self, row: LeafPlacementsRow) -> None:
        self._leaves[row.graph] = row.texts

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._results, self._leaves = {}, {}

    def node_columns(self, backward: Backward) -> Columns:
        found = {backward.node(number): text for number, text in self._results.items()}
        leaves = self._leaves.get(backward.position, {})
        return {"placement": leaves | {node: t for node, t in found.items() if node is not None}}
