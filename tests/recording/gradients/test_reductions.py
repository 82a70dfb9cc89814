"""Compare statistics of gradients of all sizes with those of NumPy in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.graph import GradientStats
from graphviz_torch.internals.tensors.memory import elements
from graphviz_torch.internals.tensors.metadata import tensor_meta
from graphviz_torch.recording.gradients import accelerator, statistics
from graphviz_torch.recording.gradients.accelerator import combine, reduce
from graphviz_torch.recording.gradients.cpu import end_to_end
from graphviz_torch.recording.gradients.statistics import Descriptions


@pytest.fixture(params=["cpu", "sim:0", "cuda:0"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "cuda:0" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if request.param == "sim:0":
        with simulate_accelerator() as devices:
            yield devices[0]
    else:
        yield torch.device(request.param)


def described(*gradients: Tensor, device: torch.device | str = "cpu") -> list[GradientStats]:
    """Return the recorded statistics of these gradients, each at a leaf of its own."""
    leaves = [torch.zeros_like(gradient, device=device).requires_grad_() for gradient in gradients]
    there = [gradient.to(device) for gradient in gradients]
    with record() as recording:
        torch.autograd.backward([leaf.clone() for leaf in leaves], there)
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
    """Return random values: a third are zero, the largest is negative and at the end."""
    made = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    made[::3] = 0
    made[-1] = -100
    return made


# One alone, in a batch, the largest that waits and one more, one block, and a few with a rest.
SIZES = [2, 255, 1 << 17, (1 << 17) + 1, 1 << 19, (1 << 20) + 129]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_of_any_size_is_described_as_numpy_does(
    elements: int, dtype: torch.dtype, device: torch.device
) -> None:
    given = gradient(elements).to(dtype)
    agrees(described(given, device=device)[0], given)


@pytest.mark.parametrize("elements", SIZES[1:])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_counted_in_the_last_element_too(
    elements: int, bad: float, device: torch.device
) -> None:
    given = gradient(elements)
    given[-1] = bad
    agrees(described(given, device=device)[0], given)


@pytest.mark.parametrize("size", [1e-25, 1e30])
def test_squares_neither_vanish_nor_overflow(size: float, device: torch.device) -> None:
    given = [gradient(elements) * size for elements in (3, 2000, 1 << 18)]
    for stats, expected in zip(described(*given, device=device), given, strict=True):
        agrees(stats, expected)


def test_each_of_many_gradients_that_wait_together_has_its_own_numbers(
    device: torch.device,
) -> None:
    given = [gradient(40_000, seed) for seed in range(9)]  # more than wait at once
    given += [gradient(64, seed).view(8, 8).t() for seed in range(30)]
    given += [gradient(elements) for elements in (5, 16, 17, 1023, 1024, 1025)]
    for stats, expected in zip(described(*given, device=device), given, strict=True):
        agrees(stats, expected)


def test_one_bad_gradient_among_those_that_wait_spoils_no_other() -> None:
    given = [gradient(64, seed) for seed in range(4)]
    given[2][5] = float("nan")
    found = described(*given)
    assert [stats.nan for stats in found] == [0, 0, 1, 0]
    for stats, expected in zip(found, given, strict=True):
        agrees(stats, expected)


def test_a_large_turned_or_strided_gradient_is_described_whole(device: torch.device) -> None:
    wide = gradient(400 * 500)
    given = [wide.view(400, 500).t(), wide.view(4, 100, 500).permute(2, 0, 1)]
    given.append(gradient(1 << 18)[::2])
    for stats, expected in zip(described(*given, device=device), given, strict=True):
        agrees(stats, expected)


@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        ((1,), (500_000,)),
        ((3, 1), (3, 90_000)),
        ((1, 300), (1000, 300)),
        ((700, 1, 5), (700, 90, 5)),
    ],
)
def test_an_expanded_gradient_is_described_whole_and_not_laid_out(
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = gradient(math.prod(shape)).view(shape)
    made.view(-1)[1:2] = float("inf")
    read = []

    def noted(tensors: list[Tensor]) -> Tensor:
        read.append(sum(map(torch.numel, tensors)))
        return end_to_end(tensors)

    for module in (statistics, accelerator):
        monkeypatch.setattr(module, "end_to_end", noted)
    leaf = torch.zeros(whole, device=device).requires_grad_()
    with record() as recording:
        leaf.clone().backward(made.to(device).expand(whole))
    (stats,) = next(n for n in recording.graph.nodes if n.name == "CloneBackward0").grad_outputs
    assert stats is not None
    assert stats.values is None
    agrees(stats, made.expand(whole))
    assert set(read) == {made.numel()}


def test_values_are_kept_in_the_order_of_rows(device: torch.device) -> None:
    given = [torch.arange(6.0).view(2, 3).t(), gradient(3000), torch.tensor([7.0])]
    values = [stats.values for stats in described(*given, device=device)]
    assert values == [(0.0, 3.0, 1.0, 4.0, 2.0, 5.0), None, (7.0,)]


def test_views_of_the_same_memory_are_apart_where_they_see_other_parts_of_it() -> None:
    memory = gradient(1200)
    given = [memory, memory.view(30, 40), memory.view(30, 40).t(), memory[:600], memory[::2]]
    given += [memory[600:], memory[5].expand(1200)]
    for stats, expected in zip(described(*given), given, strict=True):
        agrees(stats, expected)


def reduced(*gradients: Tensor) -> list[tuple[object, ...]]:
    """What is told of gradients on another device; here, on the CPU."""
    parts = reduce(list(map(elements, gradients)))
    return list(combine(parts, parts.numbers.numpy()))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("elements", [40, 3000])
def test_a_mean_near_the_limit_of_float64_does_not_overflow(elements: int) -> None:
    (row,) = reduced(torch.full((elements,), 1e307, dtype=torch.float64))
    assert row[1:3] == pytest.approx((1e307, 1e307))


def test_a_type_without_a_zero_has_none() -> None:
    values = torch.full((300,), 2.0).to(torch.float8_e8m0fnu)
    for norm, _, mean, zero_fraction, *_ in reduced(values, values):
        assert (norm, mean, zero_fraction) == (pytest.approx(2 * 300**0.5), 2.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elements", [4096, 5000, 9217])
def test_a_gradient_in_blocks_is_described_as_a_whole(
    elements: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = gradient(elements).to(dtype)
    given[-2] = float("nan")
    (whole,) = reduced(given)
    monkeypatch.setattr(accelerator, "_BLOCK", 2048)
    (apart,) = reduced(given)
    assert apart[:3] == pytest.approx(whole[:3], rel=1e-6)  # other rows round otherwise
    assert apart[3:] == whole[3:]
    agrees(GradientStats(*whole, tensor_meta(given)), given)  # type: ignore[arg-type]


def test_what_waits_elsewhere_takes_whole_rows() -> None:
    with simulate_accelerator() as (device, *_):
        descriptions = Descriptions()
        for i in range(5000):
            small = torch.ones((), device=device)
            descriptions.see((i, 0), small, descriptions.kind(tensor_meta(small)))
        (batch,) = descriptions._batches.values()
        assert batch.waiting * accelerator.WIDTH < batch.limit


def test_gradients_of_other_shapes_than_their_nodes_lie_beside_the_rest() -> None:
    """As a hook of the program's may give them: laid end to end by one call, they do not fit."""
    given = [gradient(64, seed).view(4, 16) for seed in range(5)]
    given += [gradient(32).view(2, 16), gradient(64).view(16, 4), gradient(24), gradient(40)[::2]]
    descriptions = Descriptions()
    kind = descriptions.kind(tensor_meta(given[0]))
    for i, each in enumerate(given):
        descriptions.see(i, each, kind)
    descriptions.describe_all()
    found = descriptions.collect()
    for i, each in enumerate(given):
        agrees(found[i], each)
