"""record(): the worked example end to end, and what a recording must never disturb."""

from __future__ import annotations

import pytest
import torch

from graphviz_torch import record, simulate_accelerator


def test_the_worked_example_has_the_gradient_at_every_node() -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with record() as recording:
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        tensors = [x, a, b, c, y]
        y.backward(retain_graph=True)
    expected = torch.autograd.grad(y, tensors)
    nodes = {node.label: node for node in recording.graph.nodes}
    assert list(nodes) == ["x", "a", "b", "c", "y"]
    for name, gradient in zip("xabcy", expected, strict=True):
        (stats,) = nodes[name].grad_outputs
        assert stats is not None
        assert stats.values == tuple(gradient.reshape(-1).tolist())
        assert stats.norm == pytest.approx(gradient.norm().item())
    assert [nodes[name].order for name in "ycbax"] == [0, 1, 2, 3, 4]
    assert [round(value, 4) for value in nodes["x"].grad_outputs[0].values] == [2, 2.6667, 3.3333]


def test_there_and_back_is_four_copies_two_of_them_in_backward() -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with simulate_accelerator() as [device], record() as recording:
        y = ((x.to(device) + 2) ** 2 + 3).mean().cpu()
        y.backward()
    graph = recording.graph
    seen = [
        (copy.kind, copy.source, copy.target, copy.phase, copy.nbytes, copy.operation)
        for copy in graph.transfers
    ]
    assert seen == [
        ("HtoD", "cpu", "sim:0", "forward", 12, "to"),
        ("DtoH", "sim:0", "cpu", "forward", 4, "cpu"),
        ("HtoD", "cpu", "sim:0", "backward", 4, ""),
        ("DtoH", "sim:0", "cpu", "backward", 12, ""),
    ]
    nodes = [graph.nodes[copy.node or 0] for copy in graph.transfers]
    assert all(node.name == "ToCopyBackward0" for node in nodes)
    assert graph.transfers[0].node == graph.transfers[3].node
    assert graph.nodes[0].grad_outputs[0].values == tuple(x.grad.tolist())
    assert {node.seconds for node in graph.nodes if node.device == "sim:0"} == {None}
