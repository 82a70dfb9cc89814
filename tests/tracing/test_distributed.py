"""Test processes under torchrun on the CPU: gathered graphs, compared ranks, no deadlock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphviz_torch import trace
from graphviz_torch.distributed import gather_graphs
from tests.support.processes.launch import launched

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture(scope="module")
def four() -> dict[str, Any]:
    """The result of rank 0 of four, over gloo."""
    return launched("tests.support.processes.ranks", "work", ranks=4)


def test_rank_0_has_the_graphs_of_all_ranks_in_their_order(four: dict[str, Any]) -> None:
    assert four["shapes"] == [[2, 1], [2, 2], [2, 3], [2, 4]]


def test_a_rank_that_skipped_a_parameter_is_named_with_it(four: dict[str, Any]) -> None:
    assert len(four["findings"]) == 1
    assert four["findings"][0].startswith("Rank 2 has no gradient for extra.weight and extra.bias")
    assert four["removed"] == [0, 4, 0]  # two leaves, the transpose and the product


def test_ranks_that_do_the_same_under_ddp_have_the_same_graph_and_no_finding(
    four: dict[str, Any],
) -> None:
    assert four["ddp_leaves"] == [four["ddp_leaves"][0]] * 4
    assert len(four["ddp_leaves"][0]) == 6
    assert four["ddp_findings"] == []


def test_a_dtensor_has_its_global_shape_and_its_local_one_in_the_note(
    four: dict[str, Any],
) -> None:
    assert four["dtensor_global"] == [8, 4]
    assert four["dtensor_note"] == "S(0), local f32[2, 4] cpu"


def test_an_fsdp_model_traces_with_whole_parameters_under_their_names(four: dict[str, Any]) -> None:
    assert four["fsdp_same"] == [True] * 4
    assert len(four["fsdp_parameters"]) == 6
    assert four["fsdp_leaves"] == {
        "first.weight": [8, 4],
        "first.bias": [8],
        "extra.weight": [8, 8],
        "extra.bias": [8],
        "last.weight": [1, 8],
        "last.bias": [1],
    }
    assert set(four["fsdp_traced"]) == set(four["fsdp_leaves"])
    assert four["fsdp_findings"] == []


def test_a_rank_that_dies_or_is_silent_is_named_and_hangs_nobody() -> None:
    seen = launched("tests.support.processes.ranks", "silent", ranks=4)
    assert seen["message"].startswith("gather_graphs: no graph from ranks 1, 2 of 4 within 2 s")
    assert seen["seconds"] < 30


def test_without_a_process_group_there_is_one_rank() -> None:
    graph = trace(torch.ones(2, requires_grad=True) * 2, names={})
    assert gather_graphs(graph) == [graph]


def test_a_store_is_left_empty_and_a_damaged_graph_names_its_rank(tmp_path: Path) -> None:
    from graphviz_torch.tracing.distributed import _collect, _key, _read

    store = dist.HashStore()
    store.set(_key(1, 1), b"damaged")
    assert _collect(store, 1, [0, 5], 1.0) == {1: b"damaged"}
    assert not store.check([_key(1, 1)])
    with pytest.raises(ValueError, match="the graph of rank 5 can't be read"):
        _read(b"damaged", 5)
