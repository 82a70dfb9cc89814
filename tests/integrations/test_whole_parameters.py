"""Compare merged gradients of all ranks with those that PyTorch gathers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from graphviz_torch import Graph
from graphviz_torch.graph import GradientStats, Node, Parameter, TensorMeta
from graphviz_torch.integrations.ranks import merge_parameters
from graphviz_torch.integrations.training import gradient_norms
from tests.support.processes.launch import launched

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
SCENE = "tests.support.processes.whole_gradients"


@pytest.fixture(scope="module")
def ways() -> dict[str, Any]:
    """By way of dividing a model: what of each parameter is ours, and what is PyTorch's."""
    return {
        **launched(SCENE, "FSDP2", "TP", "SP", ranks=2),
        **launched(SCENE, "HSDP", "TP + FSDP2", ranks=4),
    }


@pytest.mark.parametrize("way", ["FSDP2", "TP", "SP", "HSDP", "TP + FSDP2"])
def test_the_gradient_of_a_divided_parameter_is_that_of_the_whole(
    ways: dict[str, Any], way: str
) -> None:
    rows = ways[way]
    divided = {name for name, row in rows.items() if row["parts"] > 1}
    assert divided
    # Of what a sequence divides, each rank has a summand of the gradient.
    summands = {name for name in rows if way == "SP" and ".norm." in name}
    for name, row in rows.items():
        own, whole, values = row["extents"]
        assert own == ("local part" if name in divided | summands else "")
        assert whole == ("local part" if name in summands else "")
        assert values == ""
        if name not in summands:
            assert row["ours"] == pytest.approx(row["theirs"], rel=1e-5, abs=1e-8)
        if row["values"][0] is not None:
            assert row["values"][0] == pytest.approx(row["values"][1], rel=1e-5)
    if way in ("TP", "SP"):  # of the others, autograd has parameters that are whole
        assert all(rows[name]["values"][0] is not None for name in divided)


META = TensorMeta((8,), "float32", "cpu")


def grad(values: Tensor) -> GradientStats:
    finite = values[values.isfinite()]
    return GradientStats(
        finite.norm().item(),
        finite.abs().max().item(),
        finite.mean().item(),
        (values == 0).double().mean().item(),
        int(values.isnan().sum()),
        int(values.isinf().sum()),
        tensor=META._replace(shape=(len(values),)),
        extent="local part",
    )


def parameter(values: Tensor, part: int | None, parts: int) -> Graph:
    """Return a rank's shard of a parameter of eight elements, which is a leaf."""
    leaf = Node(0, "AccumulateGrad", (META,), leaf="parameter", grad_outputs=(grad(values),))
    row = Parameter("w", META, True, node=0, grad=grad(values), shard=part, shard_count=parts)
    return Graph((leaf,), parameters=(row,))


def test_numbers_of_parts_are_put_together_and_a_replica_counts_once() -> None:
    whole = torch.tensor([1.0, 0.0, float("nan"), -7.0, 2.0, float("inf"), 0.0, 3.0])
    pieces = [parameter(piece, i, 2) for i, piece in enumerate((whole[:5], whole[5:]))]
    [found] = merge_parameters([pieces[0], pieces[1], pieces[1], pieces[0]])
    stats, finite = found.grad, whole[whole.isfinite()]
    assert stats is not None
    assert stats.norm == pytest.approx(finite.norm().item())
    assert stats.mean == pytest.approx(finite.mean().item())
    assert (stats.max_abs, stats.zero_fraction, stats.nan, stats.inf) == (7.0, 0.25, 1, 1)
    assert (stats.extent, stats.tensor) == ("", found.tensor)
    assert (found.shard, found.shard_count) == (0, 1)


def test_where_a_part_is_missing_or_a_summand_the_numbers_stay_local() -> None:
    values = torch.ones(4)
    for ranks in (
        [parameter(values, 0, 2), parameter(values, 0, 2)],
        [parameter(values, None, 2), parameter(values, None, 2)],
        [parameter(values, 0, 2), replace(parameter(values, 1, 2), parameters=())],
    ):
        assert merge_parameters(ranks) == ranks[0].parameters


def test_loggers_are_sent_the_norm_of_the_whole() -> None:
    ranks = [parameter(torch.full((4,), value), i, 2) for i, value in enumerate((3.0, 4.0))]
    assert gradient_norms(ranks[0]) == {"w": 6.0}
    assert gradient_norms(replace(ranks[0], parameters=merge_parameters(ranks))) == {"w": 10.0}
