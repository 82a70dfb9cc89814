"""Test the queries that add values to nodes and modules: rows, and the expected columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from graphviz_torch.graph import SavedTensor, TensorMeta
from graphviz_torch.graph.nodes import CHECKPOINTED
from graphviz_torch.recording.backward import Backward
from graphviz_torch.recording.program.log import Query
from graphviz_torch.recording.program.rows import Row, TrainingStepRow
from graphviz_torch.recording.queries.modes import Modes, ModesRow
from graphviz_torch.recording.queries.placements import (
    LeafPlacementsRow,
    Placements,
    ResultPlacementRow,
)
from graphviz_torch.recording.queries.saved_tensors import (
    Reruns,
    SavedTensors,
    SavedTensorsRow,
    Segment,
    SegmentsRow,
)

NOTHING = cast(Any, None)


def graph(*numbers: int, position: int = 0) -> Backward:
    """Return a graph whose nodes have these sequence numbers."""
    empty: dict[Any, Any] = {}
    return Backward(
        position, NOTHING, NOTHING, list(numbers), frozenset(), empty, empty, empty, None
    )


def read(query: Query, rows: Iterable[Row]) -> Any:
    """Return the query after it has read the rows, which show no events."""
    assert [found for row in rows for found in query.read(row)] == []
    return query


@pytest.mark.parametrize(
    ("rows", "modes"),
    [
        ([ModesRow({"a": "train"}), ModesRow({"a": "eval"})], {"a": "eval"}),
        ([ModesRow({"a": "train"}), ModesRow({"b": "eval"})], {"a": "train", "b": "eval"}),
        ([ModesRow({"a": "train"}), TrainingStepRow()], {}),
    ],
)
def test_the_mode_of_a_module_is_the_last_one_of_the_step(
    rows: list[Row], modes: dict[str, str]
) -> None:
    assert read(Modes(), rows).module_columns() == {"mode": modes}


def test_placements_belong_to_the_nodes_of_a_graph_and_to_its_own_leaves() -> None:
    rows = [
        ResultPlacementRow(5, "Shard(0)"),
        ResultPlacementRow(9, "Replicate"),  # of another graph
        LeafPlacementsRow(0, {0: "Shard(1)"}),
        LeafPlacementsRow(1, {0: "Partial"}),
    ]
    query = read(Placements(), rows)
    assert query.node_columns(graph(-1, 4, 5)) == {"placement": {0: "Shard(1)", 2: "Shard(0)"}}
    assert query.node_columns(graph(-1, position=2)) == {"placement": {}}
    assert read(query, [TrainingStepRow()]).node_columns(graph(-1, 4, 5)) == {"placement": {}}


def test_saved_tensors_belong_to_their_graph_alone() -> None:
    saved = SavedTensor("self", TensorMeta((2,), "float32", "cpu"), 8, "activation")
    query = read(SavedTensors(), [SavedTensorsRow(0, {1: (saved,)}, {1: "freed"})])
    assert query.node_columns(graph(-1, 4)) == {"saved": {1: (saved,)}, "note": {1: "freed"}}
    assert query.node_columns(graph(-1, 4, position=1)) == {"saved": {}}
    assert read(query, [TrainingStepRow()]).node_columns(graph(-1, 4)) == {"saved": {}}


BEFORE = Segment(frozenset({1}), 4, 6, False, None)  # nodes 1 and 2, of which 1 saves a tensor


@pytest.mark.parametrize(
    ("segment", "reruns", "note"),
    [
        (BEFORE._replace(times=0), {1: 0}, CHECKPOINTED),
        (BEFORE._replace(times=2), {1: 2, 2: 2}, f"{CHECKPOINTED}: its forward ran again"),
        (BEFORE._replace(times=2, selects=True), {}, CHECKPOINTED),
        (BEFORE, None, f"{CHECKPOINTED}: backward runs the forward"),
    ],
)
def test_each_node_of_a_segment_ran_as_often_as_its_segment(
    segment: Segment, reruns: dict[int, int] | None, note: str
) -> None:
    query = read(Reruns(), [SegmentsRow(0, [BEFORE]), SegmentsRow(0, [segment])])
    columns = query.node_columns(graph(-1, 4, 5, 6))
    assert columns.get("reruns") == reruns
    assert columns["note"].keys() == {1}
    assert columns["note"][1].startswith(note)
    assert not any(query.node_columns(graph(-1, 4, position=1)).values())
