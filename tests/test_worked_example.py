"""Test the example y = mean((x + 2)**2 + 3) from trace to picture, against autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from graphviz_torch import Graph, draw_graph, load, record, simulate_accelerator
from graphviz_torch.export import to_dot

VALUES = [1.0, 2.0, 3.0]
DEVICES = ["cpu", "sim:0", "cuda:0"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[tuple[str, torch.device]]:
    if request.param == "cuda:0" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    simulated = request.param == "sim:0"
    with simulate_accelerator() if simulated else nullcontext([request.param]) as devices:
        yield request.param, torch.device(devices[0])


def recorded(device: torch.device) -> tuple[Graph, torch.Tensor]:
    x = torch.tensor(VALUES, requires_grad=True)
    with record() as recording:
        a = x.to(device) + 2
        b = a**2
        c = b + 3
        y = c.mean()
        y.backward()
    assert x.grad is not None
    return recording.graph, x.grad


def by_hand() -> dict[str, torch.Tensor]:
    """Return the gradient at each step from autograd, one tensor at a time."""
    x = torch.tensor(VALUES, requires_grad=True)
    a = x + 2
    b = a**2
    c = b + 3
    y = c.mean()
    names = {"x": x, "a": a, "b": b, "c": c, "y": y}
    return {name: torch.autograd.grad(y, t, retain_graph=True)[0] for name, t in names.items()}


def test_every_gradient_is_the_one_that_autograd_gives(device: tuple[str, torch.device]) -> None:
    graph, x_grad = recorded(device[1])
    torch.testing.assert_close(x_grad.cpu(), torch.tensor([2.0, 8 / 3, 10 / 3]))
    nodes = {node.label: node for node in graph.nodes if node.label}
    for name, gradient in by_hand().items():
        (stats,) = nodes[name].grad_outputs
        assert stats is not None
        assert stats.values == pytest.approx(gradient.flatten().tolist())
        assert stats.norm == pytest.approx(float(gradient.norm()))
        assert stats.max_abs == pytest.approx(float(gradient.abs().max()))
        assert stats.mean == pytest.approx(float(gradient.mean()))
        assert (stats.zero_fraction, stats.nonfinite) == (0, 0)


def test_the_way_there_and_back_is_two_transfers(device: tuple[str, torch.device]) -> None:
    name, live = device
    graph, _ = recorded(live)
    rows = [(t.kind, t.phase, t.source, t.target, t.nbytes) for t in graph.transfers]
    if name == "cpu":
        assert rows == []
        return
    # Three float32 values each way: x goes there, its gradient comes back.
    assert rows == [("HtoD", "forward", "cpu", name, 12), ("DtoH", "backward", name, "cpu", 12)]
    for transfer in graph.transfers:
        assert transfer.node is not None
        assert graph.nodes[transfer.node].name == "ToCopyBackward0"
        assert "test_worked_example.py:" in transfer.where
    if name == "sim:0":
        assert all(t.seconds is None for t in graph.transfers)
        assert all(node.seconds is None for node in graph.nodes if node.device == "sim:0")


def test_the_devices_in_the_graph_are_those_the_values_were_on(
    device: tuple[str, torch.device],
) -> None:
    graph, _ = recorded(device[1])
    leaf, *others = graph.nodes
    assert leaf.device == "cpu"
    assert {node.device for node in others} == {device[0]}


def test_a_saved_recording_draws_the_same_without_the_tensors(tmp_path: Path) -> None:
    graph, _ = recorded(torch.device("cpu"))
    again = load(graph.save(tmp_path / "graph.json"))
    assert again == graph
    assert to_dot(again) == to_dot(graph)
    assert draw_graph(again).pipe(format="svg").lstrip().startswith(b"<?xml")
