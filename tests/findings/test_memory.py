"""Findings on memory, dtype and history, on recordings of models with common mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import Graph, find, record
from tests.support.models import MLP
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_steps_inside_a_step_are_no_history_that_was_kept() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    with record() as recording:
        fast = weight
        for _ in range(4):
            loss = torch.tanh(torch.randn(8, 4) @ fast).square().mean()
            (gradient,) = torch.autograd.grad(loss, fast, create_graph=True)
            fast = fast - 0.1 * gradient
        (torch.randn(8, 4) @ fast).square().mean().backward()
    sizes = [len(graph.nodes) for graph in recording.graphs]
    assert sizes == sorted(set(sizes))
    for count in range(3, 6):
        *previous, last = recording.graphs[:count]
        assert not [f for f in find(last, previous) if f.rule == "growing-graph"]


class Meter:
    """What people log with."""

    def __init__(self) -> None:
        self.total: Any = 0
        self.all: list[Any] = []

    def add(self, value: Any) -> None:
        self.total = self.total + value

    def append(self, value: Any) -> None:
        self.all.append(value)


def steps(count: int, log: Callable[[Any, Any], Any], rounds: int = 1) -> Graph:
    """The last graph of a training loop that logs its loss."""
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter, kept = Meter(), None
    with record(model) as recording:
        for _ in range(count):
            for _ in range(rounds):
                loss = model(torch.randn(8, 4)).sum()
                loss.backward()
                kept = log(meter, loss)
            optimizer.step()
    del kept
    return recording.graph


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (lambda meter, loss: meter.add(loss), "self.total = self.total + value"),
        (lambda meter, loss: meter.append(loss), "loss = model(torch.randn(8, 4)).sum()"),
    ],
    ids=["sum", "list"],
)
def test_a_loss_logged_with_its_history_is_found_with_the_line_that_keeps_it(
    log: Callable[[Meter, Tensor], None], line: str
) -> None:
    found = only("kept-history", steps(4, log))
    assert found.message.startswith("The graphs of 3 earlier steps are still alive: ")
    assert line in Path(__file__).read_text().splitlines()[int(found.where.split(":")[1]) - 1]


@pytest.mark.parametrize(("count", "rounds"), [(1, 4), (2, 1)], ids=["of one step", "no trend yet"])
def test_a_list_of_few_losses_is_no_history(count: int, rounds: int) -> None:
    assert steps(count, Meter.append, rounds).step.retained is None


def loop(step: Callable[[], Any], count: int = 5) -> Graph:
    """The last graph of some steps, between which an optimizer steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with record() as recording:
        for _ in range(count):
            step()
            optimizer.step()
    return recording.graph


def test_what_holds_one_step_is_not_blamed_for_all() -> None:
    model, losses = MLP(), []
    last: list[Tensor] = []

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        losses.append(loss)
        last[:] = [loss.sqrt()]  # newer, and holds the last one

    assert ": losses keeps what" in only("kept-history", loop(step)).message


def test_each_line_that_runs_backward_has_its_own_history() -> None:
    model, first, second = MLP(), [], []

    def step() -> None:
        one, two = model(torch.randn(8, 4)).sum(), model(torch.randn(8, 4)).mean()
        one.backward()
        first.append(one)
        two.backward()
        second.append(two)

    assert ": second keeps what" in only("kept-history", loop(step)).message


def test_a_history_that_was_dropped_is_not_told_any_more() -> None:
    model, kept = MLP(), []

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        kept.append(loss)
        if len(kept) == 4:
            kept.clear()

    assert loop(step, 4).step.retained is not None
    kept.clear()
    assert loop(step, 6).step.retained is None


def test_blocks_alike_are_summed_up_and_advised_on_together() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 2, 512, batch_first=True)
    model = torch.nn.Module()
    model.layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with record(model) as recording:
        model.layers(torch.randn(8, 64, 32)).sum().backward()
    found = only("most-memory", recording.graph)
    saved: dict[str, int] = {}
    for node in recording.graph.nodes:
        part = ".".join(node.module.split(".")[3:4])
        nbytes = sum(s.nbytes for s in node.saved if s.kind == "activation")
        saved[part] = saved.get(part, 0) + nbytes
    part, most = max(saved.items(), key=lambda item: item[1])
    share = f"{most / sum(saved.values()):.0%}"
    assert f"most of it in layers.layers.*.{part}, 6 times (" in found.message
    assert share in found.message
    assert found.advice.endswith("run each of layers.layers.* under torch.utils.checkpoint.")
