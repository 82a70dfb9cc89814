"""Statistics of gradients of all sizes, against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from graphviz_torch import GradientStats, record


def described(*gradients: Tensor) -> list[GradientStats]:
    """What a recording says of these gradients, each at a leaf of its own."""
    leaves = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients]
    with record() as recording:
        torch.autograd.backward([leaf.clone() for leaf in leaves], gradients)
    by_leaf = {node.label: node for node in recording.graph.nodes if node.leaf}
    found = [by_leaf[f"leaves[{i}]"].grad_outputs[0] for i in range(len(leaves))]
    assert None not in found
    return [stats for stats in found if stats is not None]


def agrees(stats: GradientStats, gradient: Tensor) -> None:
    values = gradient.double().numpy().ravel()
    finite = values[np.isfinite(values)]
    assert stats.norm == pytest.approx(float(np.linalg.norm(finite)), rel=1e-5)
    assert stats.max_abs == float(np.abs(finite).max())
    assert stats.mean == pytest.approx(float(finite.mean()), rel=1e-4, abs=1e-6)
    assert stats.zero_fraction == pytest.approx(1 - np.count_nonzero(values) / values.size)
    assert (stats.nan, stats.inf) == (np.isnan(values).sum(), np.isinf(values).sum())


def gradient(elements: int, seed: int = 0) -> Tensor:
    """Random values of which a third are zero, the largest of them negative and at the end."""
    made = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    made[::3] = 0
    made[-1] = -100
    return made


# One alone, in a batch, the largest that waits and one more, one block, and a few with a rest.
SIZES = [2, 255, 1 << 17, (1 << 17) + 1, 1 << 19, (1 << 20) + 129]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_of_any_size_is_described_as_numpy_does(
    elements: int, dtype: torch.dtype
) -> None:
    given = gradient(elements).to(dtype)
    agrees(described(given)[0], given)


@pytest.mark.parametrize("elements", SIZES[1:])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_counted_in_the_last_element_too(
    elements: int, bad: float
) -> None:
    given = gradient(elements)
    given[-1] = bad
    agrees(described(given)[0], given)


def test_each_of_many_gradients_that_wait_together_has_its_own_numbers() -> None:
    given = [gradient(40_000, seed) for seed in range(9)]  # more than wait at once
    given += [gradient(64, seed).view(8, 8).t() for seed in range(30)]
    for stats, expected in zip(described(*given), given, strict=True):
        agrees(stats, expected)


def test_one_bad_gradient_among_those_that_wait_spoils_no_other() -> None:
    given = [gradient(64, seed) for seed in range(4)]
    given[2][5] = float("nan")
    found = described(*given)
    assert [stats.nan for stats in found] == [0, 0, 1, 0]
    for stats, expected in zip(found, given, strict=True):
        agrees(stats, expected)


def test_a_large_turned_or_strided_gradient_is_described_whole() -> None:
    wide = gradient(400 * 500)
    given = [wide.view(400, 500).t(), wide.view(4, 100, 500).permute(2, 0, 1)]
    given.append(gradient(1 << 18)[::2])
    for stats, expected in zip(described(*given), given, strict=True):
        agrees(stats, expected)


def test_values_are_kept_in_the_order_of_rows() -> None:
    given = torch.arange(6.0).view(2, 3).t()
    assert described(given)[0].values == (0.0, 3.0, 1.0, 4.0, 2.0, 5.0)
