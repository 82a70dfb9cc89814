"""Test findings on gradient values in recordings of models with common mistakes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import find, record
from graphviz_torch.findings.rules.values import NonfiniteValue
from tests.findings.by_hand.graphs import event, told
from tests.support.models import MLP
from tests.support.recorded import only, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


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
    assert "as they have been since backward 1 of the recording" in last.message
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


def test_where_no_node_tells_what_it_keeps_none_is_said_to_have_made_the_value() -> None:
    graph = told(event(NonfiniteValue, where="train.py:5", in_loss=True, inf=1, nodes=(1,)))
    [found] = find(graph)
    assert found.message == (
        "The root of backward at train.py:5 has 1 Inf; the loss is therefore not finite."
    )
    assert found.advice == "Check the operations that computed it."
