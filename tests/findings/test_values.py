"""Findings on gradient values, on recordings of models with common mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import find, record
from tests.support.models import MLP
from tests.support.recorded import classified, only, tower, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_a_deep_stack_of_sigmoids_vanishes_and_names_the_first_layers() -> None:
    found = only(
        "vanishing-gradient", trained(tower(12, nn.Sigmoid), torch.randn(32, 64), loss=classified)
    )
    assert found.severity == "warning"
    assert "0.weight" in found.message


def test_weights_that_are_too_large_explode() -> None:
    model = tower(20, nn.ReLU, gain=2.0)
    graph = trained(model, torch.randn(32, 64), loss=classified)
    assert only("exploding-gradient", graph).severity == "warning"


def test_a_bias_far_below_zero_kills_a_relu() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    with torch.no_grad():
        model[0].bias[:62] = -50
    found = only("dead-relu", trained(model, torch.randn(64, 8)))
    assert "96.9% of its units" in found.message  # 62 of 64


@pytest.mark.parametrize(
    ("rule", "said", "wrong"),
    [
        ("nonfinite-gradient", "sqrt at ", lambda h: (h - h).sqrt().sum()),
        (
            "nonfinite-value",
            "log at .* made Inf: it was given 128 0s",
            lambda h: (h * 0).log().sum(),
        ),
        (
            "nonfinite-value",
            "div at .* its divisor has 1 zero;",
            lambda h: h.sum() * 0 / (h.sum() * 0),
        ),
        (
            "nonfinite-value",
            "sqrt at .* 128 negative numbers",
            lambda h: (-h.abs() - 1).sqrt().sum(),
        ),
        ("nonfinite-value", "exp at .* overflowed", lambda h: (h.abs() * 1e4 + 999).exp().sum()),
        ("nonfinite-value", "pow at .* 128 negative", lambda h: (-h.abs() - 1).pow(0.5).sum()),
        ("nonfinite-value", "acos at .* outside -1 and 1", lambda h: (h.abs() + 2).acos().sum()),
        (
            "nonfinite-value",
            "softmax at .* 64 rows of its input held only -inf",
            lambda h: (h - float("inf")).softmax(1).sum(),
        ),
        ("nonfinite-value", "mean at .* no elements", lambda h: h[:0].mean()),
        ("nonfinite-value", "std at .* a single element", lambda h: h[0, :1].std()),
    ],
)
def test_the_node_that_made_the_first_nan_is_named(
    rule: str, said: str, wrong: Callable[[Tensor], Tensor]
) -> None:
    found = only(rule, trained(MLP(), torch.randn(64, 4), loss=wrong))
    assert found.severity == "error"
    assert re.match(said, found.message), found.message
    assert found.where.startswith("test_values.py:")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_forgotten_zero_grad_is_found_at_the_step(kind: Any) -> None:
    model = MLP()
    optimizer = kind(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert recording.graphs[0].step.stale_gradients == ""
    found = only("uncleared-gradient", recording.graph)
    line = Path(__file__).read_text().splitlines()[int(found.where.split(":")[1]) - 1]
    assert line.strip() == "optimizer.step()"


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("where", ["before", "after"])
def test_gradients_that_are_cleared_somewhere_are_fine(to_none: bool, where: str) -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            if where == "before":
                optimizer.zero_grad(set_to_none=to_none)
            for _ in range(2):  # added up on purpose
                model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
            if where == "after":
                model.zero_grad(set_to_none=to_none)
    assert [graph.step.stale_gradients for graph in recording.graphs] == [""] * 6


def test_gradients_of_another_networks_loss_may_stay_until_they_are_cleared() -> None:
    generator, critic = nn.Linear(2, 4), MLP()
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (critic, generator))
    with record(nn.ModuleList([generator, critic])) as recording:
        for _ in range(3):
            first.zero_grad()
            critic(generator(torch.randn(8, 2)).detach()).sum().backward()
            first.step()
            second.zero_grad()
            critic(generator(torch.randn(8, 2))).sum().backward()  # adds to the critic's too
            second.step()
    assert [graph.step.stale_gradients for graph in recording.graphs] == [""] * 6


def test_a_closure_that_clears_is_fine() -> None:
    model = MLP()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with record(model) as recording:
        for _ in range(2):
            optimizer.step(closure)
    assert {graph.step.stale_gradients for graph in recording.graphs} == {""}


def test_what_is_nan_in_a_later_step_is_told_from_the_first() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.randn(8, 4)) * 0).sqrt().sum().backward()
            optimizer.step()
    assert [graph.step.nonfinite_since for graph in recording.graphs] == [None, 0, 0]
    assert only("nonfinite-gradient", recording.graphs[0]).message.startswith("sqrt at ")
    last = only("nonfinite-gradient", recording.graph)
    assert "were so before: first in backward 1 of the recording" in last.message
    assert "find(recording.graphs[0])" in last.advice


def test_the_first_nan_agrees_with_detect_anomaly() -> None:
    def loss(h: Tensor) -> Tensor:
        return (torch.where(h > 1e9, h, (h * 0).sqrt()) + h).sum()

    model = MLP()
    x = torch.randn(64, 4)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"),
        torch.autograd.detect_anomaly(),
    ):
        (loss(model(x)) * 0).backward()
    graph = trained(model, x, loss=lambda h: loss(h) * 0)
    assert only("nonfinite-gradient", graph).message.startswith("sqrt at ")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda h: (h - h.detach()).norm(dim=1).sqrt().sum(),
        lambda h: h.masked_fill(torch.tensor([[False] * 3, [True] * 3]), -torch.inf).softmax(1),
        lambda h: torch.where(h > 1e9, h.sqrt(), h),
        lambda h: (h * 1e30).exp(),
        lambda h: h / 0,
    ],
)
def test_without_statistics_the_first_nan_or_inf_is_told_in_the_same_words(spoil: Any) -> None:
    model, x, said = nn.Linear(4, 3), torch.randn(2, 4), []
    for gradients in (True, "finite"):
        with record(model, gradients=gradients) as recording:  # type: ignore[arg-type]
            spoil(model(x)).sum().backward()
        (found,) = find(recording)
        said.append((found.rule, re.sub(r" \(norm .*?\)", "", found.message), found.advice))
    assert said[0] == said[1]


def test_a_parameter_that_is_nan_before_the_step_is_named_with_where_that_may_come_from() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    found = only("nonfinite-value", trained(model, torch.ones(4, 3), loss=Tensor.sum))
    assert "weight is NaN or Inf already" in found.message
    assert found.advice == (
        "Look at what made that parameter so: a step with such a gradient, an initialisation that "
        "divides by zero, or the checkpoint it was loaded from."
    )
