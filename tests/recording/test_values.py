"""Compare fingerprints of results with NumPy's sums of the same tensors."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, load, record
from graphviz_torch.graph import Fingerprint
from graphviz_torch.recording import fingerprints
from tests.support.models import gpt2, tokens


def values(compute: Callable[[], Tensor]) -> list[Fingerprint]:
    """Those of the results of a computation, without the leaves and the last sum."""
    with record(fingerprints=True) as recording:
        compute().sum().backward()
    nodes = [node for node in recording.graph.nodes if not node.leaf]
    return [value for node in nodes[:-1] for value in node.fingerprints if value is not None]


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (2, 3, 4, 5), (200, 300)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_five_numbers_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    x = made(*shape)
    [value] = values(lambda: x * 2)
    exact = x.detach().double().numpy() * 2
    told = (value.norm, value.mean, value.least, value.greatest)
    expected = (np.linalg.norm(exact), exact.mean(), exact.min(), exact.max())
    assert value.elements == exact.size
    assert told == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_two_projections_are_order_free_sums(shape: tuple[int, ...]) -> None:
    x = made(*shape)
    [value] = values(lambda: x * 2)
    exact = x.detach().double().numpy() * 2
    expected = np.abs(exact).sum(), (exact**3).sum() / (exact**2).sum()
    assert value.projections[6:] == pytest.approx(expected, rel=1e-5)


def test_what_is_read_in_blocks_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = made(300, 200)
    [whole] = values(lambda: x * 2)
    monkeypatch.setattr(fingerprints, "_BLOCK", 1000)
    [blocks] = values(lambda: x * 2)
    assert [*blocks[:5], *blocks[5]] == pytest.approx([*whole[:5], *whole[5]], rel=1e-4, abs=1e-4)


def test_what_waits_for_others_has_the_numbers_of_one_read_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = made(6, 5)
    together = values(lambda: (x * 2).sin().exp().cos())
    monkeypatch.setattr(fingerprints, "_MAX_QUEUED", 1)
    alone = values(lambda: (x * 2).sin().exp().cos())
    assert len(together) == len(alone) == 4
    for one, other in zip(together, alone, strict=True):
        assert [*one[:5], *one[5]] == pytest.approx([*other[:5], *other[5]], rel=1e-5, abs=1e-5)


def test_rows_in_another_order_keep_the_projection_along_a_row() -> None:
    x = made(4, 6, 8)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    one, other = values(lambda: x * 2), values(lambda: x * 2 + 0 * x)[-1:]
    [moved] = values(lambda: (x * 2)[:, order])[-1:]
    assert one[0].projections == pytest.approx(other[0].projections, abs=1e-4)
    along, near = slice(0, 2), slice(2, 4)
    assert moved.projections[along] == pytest.approx(one[0].projections[along], abs=1e-4)
    assert moved.projections[near] != pytest.approx(one[0].projections[near], abs=1e-2)
    assert moved.projections[4] == pytest.approx(one[0].projections[4], abs=1e-4)


def test_a_cyclic_shift_keeps_the_length_of_a_wave() -> None:
    x = made(3, 9, 8)
    first, second = values(lambda: (x * 2).roll(4, 1))
    assert math.hypot(*first.projections[2:4]) == pytest.approx(
        math.hypot(*second.projections[2:4]), rel=1e-4
    )
    assert first.projections[2:4] != pytest.approx(second.projections[2:4], rel=1e-2)


def test_a_transposed_matrix_has_its_waves_swapped() -> None:
    x = made(5, 7)
    first, second = values(lambda: (x * 2).t())
    assert second.projections[:4] == pytest.approx(
        (*first.projections[2:4], *first.projections[:2]), abs=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_dtypes_have_values_too(dtype: torch.dtype) -> None:
    x = made(6, 5, dtype=dtype)
    with record(fingerprints=True) as recording:
        (x * 2).abs().sum().backward()
    [value] = recording.graph.nodes[1].fingerprints
    assert value is not None
    assert value.norm == pytest.approx(float(torch.linalg.norm(x.detach() * 2).abs()), rel=1e-2)


def test_an_output_of_several_is_read_at_its_number() -> None:
    x = made(6, 5)
    with record(fingerprints=True) as recording:
        first, second = (x * 1).split(3)
        (first.sum() + second.sum()).backward()
    [node] = [node for node in recording.graph.nodes if node.operation == "split"]
    norms = [value.norm for value in node.fingerprints if value is not None]
    assert norms == pytest.approx([x[:3].norm().item(), x[3:].norm().item()], rel=1e-5)


def test_a_result_that_is_changed_later_has_the_value_that_it_had() -> None:
    x = made(6, 5)
    first, second = values(lambda: (x * 2).add_(1))
    assert second.mean == pytest.approx(first.mean + 1)


def test_a_value_that_is_not_finite_is_noted_and_written(tmp_path: Path) -> None:
    x = made(2, 3)
    with record(fingerprints=True) as recording:
        (x * 1).masked_fill(torch.ones(2, 3).triu(1) > 0, -math.inf).softmax(-1).sum().backward()
    assert load(recording.graph.save(tmp_path / "a.json.gz")) == recording.graph
    masked = recording.graph.nodes[2].fingerprints[0]
    assert masked is not None
    assert masked.least == -math.inf


def test_a_result_without_a_node_has_no_value() -> None:
    x = made(2, 3)
    with torch.no_grad():
        x.sin()
    assert len(values(lambda: x * x.detach().sin() * (x > 0).long())) == 2


@pytest.mark.parametrize("leaf_elements", [16, 1 << 19], ids=["small", "large"])
def test_a_leaf_has_its_value(leaf_elements: int) -> None:
    x = made(leaf_elements // 4, 4)
    with record(fingerprints=True) as recording:
        (x * 2).sum().backward()
    value = recording.graph.nodes[0].fingerprints[0]
    assert value is not None
    assert value.elements <= leaf_elements
    assert value.norm / math.sqrt(value.elements) == pytest.approx(1, rel=0.3)


def left_out() -> dict[str, Callable[[], Tensor]]:
    indices = torch.tensor([[0, 1], [1, 0]])
    return {
        "meta": lambda: torch.ones(2, 3, device="meta", requires_grad=True),
        "sparse": lambda: torch.sparse_coo_tensor(
            indices, torch.ones(2), (2, 2), check_invariants=True
        ).requires_grad_(),
        "nested": lambda: torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True
        ),
    }


@pytest.mark.parametrize("kind", left_out())
def test_what_has_no_dense_memory_is_left_out(kind: str) -> None:
    with record(fingerprints=True) as recording:
        result = left_out()[kind]() * 2
    assert result.requires_grad
    assert [node.name for node in recording.graph.nodes] == ["AccumulateGrad", "MulBackward0"]
    assert not any(node.fingerprints for node in recording.graph.nodes)
    assert not recording._missed


def step(model: nn.Module, batch: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    out = model(batch)
    (out if isinstance(out, Tensor) else out[0]).float().square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None] + [torch.rand(3)]


def test_gradients_and_random_numbers_are_bit_for_bit_those_of_a_bare_step() -> None:
    model = gpt2().train()
    batch = tokens()
    bare = step(model, batch)
    with record(model, fingerprints=True):
        watched = step(model, batch)
    assert all(map(torch.equal, bare, watched))


def test_autocast_and_modes_are_as_before() -> None:
    model, x = nn.Linear(4, 4), torch.ones(3, 4)
    with record(model, fingerprints=True) as recording, torch.autocast("cpu", torch.bfloat16):
        out = model(x)
        assert torch.is_autocast_enabled("cpu")
        assert torch.mm(x, x.t()).dtype == torch.bfloat16
    assert out.dtype == torch.bfloat16
    assert any(any(node.fingerprints) for node in recording.graph.nodes)


def test_no_tensor_is_alive_after_its_program() -> None:
    x = made(40, 50)
    with record(fingerprints=True):
        y = x * 2
        watched = weakref.ref(y.sin())
        gc.collect()
        assert watched() is None
        y.sum().backward()


def compiled(closed: bool) -> Graph:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="aot_eager")
    option: Any = "closed" if closed else "open"
    with record(model, fingerprints=True, compiled=option) as recording:
        model(torch.ones(3, 4)).sum().backward()
    return recording.graph


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_of_a_compiled_region_the_result_has_a_value_and_nothing_inside(closed: bool) -> None:
    graph = compiled(closed)
    having = {node.operation for node in graph.nodes if any(node.fingerprints) and not node.leaf}
    assert having == {"compiled", "sum"}
