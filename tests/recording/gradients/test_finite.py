"""Test record(gradients="finite"): the first gradient and result that are not finite."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, find, record
from graphviz_torch.internals.probes import Probe
from graphviz_torch.recording.events.nonfinite import FiniteResults
from tests.findings.corpus.cases import step
from tests.support.programs import function


def first_gradient(graph: Graph) -> Any:
    """Return the first node in backward whose gradient is not finite."""
    nodes = [n for n in graph.nodes if any(s is not None and s.nonfinite for s in n.grad_outputs)]
    return min(nodes, key=lambda node: math.inf if node.order is None else node.order)


def recorded(run: Callable[[], Any], gradients: Any = "finite") -> Graph:
    with record(gradients=gradients) as recording:
        run()
    return recording.graph


def root_of_zero() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    (x.sqrt() * torch.tensor([0.0, 1.0])).sum().backward()  # 0 * inf


def hidden_by_a_mask() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    y = torch.where(x > 0, x.sqrt(), x)
    (y * 2).sum().backward()


def of_many() -> None:
    x = torch.rand(64, 64, requires_grad=True)
    y = x
    for _ in range(100):
        y = y.sin() + 1
    (y / (y - y)).sum().backward()


def of_a_large_one() -> None:
    x = torch.zeros(400, 400, requires_grad=True)
    x.abs().sqrt().sum().backward()


def of_a_custom_function() -> None:
    divides = function(lambda ctx, x: x.clone(), lambda ctx, gradient: gradient / 0)
    divides.apply(torch.ones(3, requires_grad=True).exp()).sum().backward()


@pytest.mark.parametrize(
    "run", [root_of_zero, hidden_by_a_mask, of_many, of_a_large_one, of_a_custom_function]
)
def test_the_first_gradient_is_the_one_that_the_statistics_give(run: Callable[[], None]) -> None:
    expected, found = first_gradient(recorded(run, True)), first_gradient(recorded(run))
    assert (found.id, found.name, found.where) == (expected.id, expected.name, expected.where)
    assert found.grad_outputs[0].nonfinite == expected.grad_outputs[0].nonfinite > 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_what_detect_anomaly_raises_is_seen() -> None:
    message = "'SqrtBackward0' returned nan values in its 0th output"
    with pytest.raises(RuntimeError, match=message), torch.autograd.detect_anomaly():
        root_of_zero()
    graph = recorded(root_of_zero)
    found = first_gradient(graph)  # what it returned is given to what comes next
    users = [graph.nodes[edge.target].name for edge in graph.edges if edge.source == found.id]
    assert users == ["SqrtBackward0"]


def test_the_first_result_is_named_with_its_line_and_its_operands() -> None:
    def run() -> None:
        x = torch.tensor([-1.0, 4.0], requires_grad=True)
        scale = torch.tensor([1.0, 0.0], requires_grad=True)
        y = (x * 2).log()  # here
        z = y / scale
        (z * z).sum().backward()

    graph = recorded(run)
    noted = {node.note: node for node in graph.nodes if node.note}
    assert set(noted) == {
        "the first result with NaN: 1 of 2 elements",
        "the first result with Inf: 1 of 2 elements",
    }
    node = noted["the first result with NaN: 1 of 2 elements"]
    lines, start = inspect.getsourcelines(run)
    here = start + next(i for i, line in enumerate(lines) if "# here" in line)
    assert (node.name, node.where) == ("LogBackward0", f"test_finite.py:{here}")
    assert noted["the first result with Inf: 1 of 2 elements"].name == "DivBackward0"


def test_a_result_that_is_changed_in_place_is_looked_at_before() -> None:
    def run() -> None:
        x = torch.tensor([-1.0, 4.0], requires_grad=True)
        y = x.log() * 1
        y[0] = 0.0
        y.sum().backward()

    assert [n.name for n in recorded(run).nodes if n.note] == ["LogBackward0"]


def test_each_backward_is_told_its_own_first() -> None:
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    with record(gradients="finite") as recording:
        for _ in range(2):
            x.log().sum().backward()
        x.exp().sum().backward()
    assert [[n.name for n in g.nodes if n.note] for g in recording.graphs] == [
        ["LogBackward0"],
        ["LogBackward0"],
        [],
    ]


def test_a_result_with_both_says_so() -> None:
    def run() -> None:
        x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
        x.log().sum().backward()

    [noted] = [node.note for node in recorded(run).nodes if node.note]
    assert (
        noted
        == "the first result with Inf: 1 of 3 elements; the first result with NaN: 1 of 3 elements"
    )


def test_the_cause_is_found_in_the_forward_that_made_it_and_in_no_other() -> None:
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    with record(gradients="finite") as recording:
        x.exp().sum().backward()
        x.log().sum().backward()
        x.exp().sum().backward()
    [told] = [each for each in find(recording) if each.rule == "nonfinite-value"]
    assert told.steps[0] == 1
    assert "log" in told.message


@pytest.mark.parametrize("peek", [False, True])
def test_sums_that_stay_on_a_device_name_the_first_of_each_forward(
    peek: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_device(self: FiniteResults, number: int, tensor: Tensor) -> None:
        self._sums.append((number, Probe(torch.sum(tensor, dtype=torch.float32))))

    monkeypatch.setattr(FiniteResults, "_look", on_a_device)  # the CPU stands in for a GPU
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    with record(gradients="finite") as recording:
        for _ in range(2):
            y = x.log()
            if peek:
                assert recording.graphs
            (y * 2).sum().backward()
        x.exp().sum().backward()
    noted = [[(n.name, n.note) for n in graph.nodes if n.note] for graph in recording.graphs]
    assert noted == [[("LogBackward0", "the first result that is not finite")]] * 2 + [[]]


def test_a_gradient_that_a_custom_backward_mends_in_place_is_told_as_it_arrived() -> None:
    mends = function(lambda ctx, x: x.clone(), lambda ctx, gradient: gradient.zero_())

    def run() -> None:
        x = torch.ones(2, requires_grad=True)
        (mends.apply(x * 1) * torch.tensor([math.nan, math.inf])).sum().backward()

    told = {
        node.name: (stats.nan, stats.inf)
        for node in recorded(run).nodes
        for stats in node.grad_outputs
        if stats is not None
    }
    assert told == {"CustomBackward": (1, 1)}


def test_of_finite_gradients_nothing_is_told_and_training_is_the_same() -> None:
    def train(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 300), nn.LayerNorm(300), nn.GELU(), nn.Linear(300, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            with record(model, gradients="finite") if watched else nullcontext() as recording:
                step(optimizer, model(torch.randn(16, 8)).square().mean())
            if recording:
                nodes = recording.graph.nodes
                assert not any(node.grad_outputs or node.note for node in nodes)
                assert sorted(node.order for node in nodes) == list(range(len(nodes)))
                assert not find(recording)
        return [p.detach() for p in model.parameters()]

    for bare, watched in zip(train(False), train(True), strict=True):
        assert torch.equal(bare, watched)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match='pass True, False or "finite"'):
        record(gradients="all")  # type: ignore[arg-type]
