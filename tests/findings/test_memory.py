"""Test findings on memory that need several graphs of a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphviz_torch import find, record
from tests.findings.mistakes import memory
from tests.findings.mistakes.memory import Meter, loop
from tests.support.models import MLP
from tests.support.recorded import only, trained

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
        assert not [f for f in find(last, previous) if f.rule == "retained-graph"]


def test_a_sum_of_losses_grows_over_recordings_too() -> None:
    model, total, recordings = MLP(), torch.zeros(()), []
    for _ in range(3):
        with record(model) as recording:
            total = total + model(torch.randn(8, 4)).sum()
            total.backward(retain_graph=True)
        recordings.append(recording.graph)
    found = find(recordings[-1], recordings[:-1])
    assert [each.severity for each in found if each.rule == "retained-graph"] == ["warning"]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (Meter.add, "self.total = self.total + value"),
        (Meter.append, "loss = model(torch.randn(8, 4)).sum()"),
    ],
)
def test_a_loss_logged_with_its_history_is_found_with_the_line_that_keeps_it(
    log: memory.Log, line: str
) -> None:
    found = only("retained-graph", memory.logged(log, "")(record))
    assert found.message.startswith("The graphs of 3 earlier steps are still in memory: ")
    lines = Path(memory.__file__).read_text().splitlines()
    assert line in lines[int(found.where.split(":")[1]) - 1]


@pytest.mark.parametrize(("count", "rounds"), [(1, 4), (2, 1)], ids=["of one step", "no trend yet"])
def test_a_list_of_few_losses_is_no_history(count: int, rounds: int) -> None:
    model, losses = MLP(), list[Tensor]()

    def step() -> None:
        for _ in range(rounds):
            losses.append(model(torch.randn(8, 4)).sum())
            losses[-1].backward()

    assert loop(record, step, count).step.retained is None


def test_what_holds_one_step_is_not_blamed_for_all() -> None:
    model, losses, last = MLP(), list[Tensor](), list[Tensor]()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        losses.append(loss)
        last[:] = [loss.sqrt()]  # newer, and holds the last one

    assert ": losses keeps the result of" in only("retained-graph", loop(record, step)).message


def test_each_line_that_runs_backward_has_its_own_history() -> None:
    model, first, second = MLP(), list[Tensor](), list[Tensor]()

    def step() -> None:
        one, two = model(torch.randn(8, 4)).sum(), model(torch.randn(8, 4)).mean()
        one.backward()
        first.append(one)
        two.backward()
        second.append(two)

    assert ": second keeps the result of" in only("retained-graph", loop(record, step)).message


def test_a_history_that_was_dropped_is_not_told_any_more() -> None:
    model, kept = MLP(), list[Tensor]()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        kept.append(loss)
        if len(kept) == 4:
            kept.clear()

    assert loop(record, step, 4).step.retained is not None
    kept.clear()
    assert loop(record, step, 6).step.retained is None


def test_blocks_alike_are_summed_up_and_advised_on_together() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 2, 512, batch_first=True)
    blocks = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    graph = trained(torch.nn.Sequential(blocks), torch.randn(8, 64, 32))
    found = only("most-memory", graph)
    saved: dict[str, int] = {}
    for node in graph.nodes:
        part = ".".join(node.module.split(".")[3:4])
        nbytes = sum(s.nbytes for s in node.saved if s.kind == "activation")
        saved[part] = saved.get(part, 0) + nbytes
    part, most = max(saved.items(), key=lambda item: item[1])
    assert f"most of it in 0.layers.*.{part} of 6 blocks (" in found.message
    assert f"{most / sum(saved.values()):.0%}" in found.message
    assert "run each of 0.layers.* under torch.utils.checkpoint: about" in found.advice


def test_a_graph_behind_detached_data_is_not_kept_by_the_steps() -> None:
    """The energy of the true weights lives on: only `detach` connects it with the steps."""
    true, weight = (torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    with record() as recording:
        points = torch.ones(3, 2, requires_grad=True)
        energy = (true * points).square().sum(1)
        (forces,) = torch.autograd.grad(energy.sum(), points)
        for _ in range(4):
            x = points.detach().clone().requires_grad_(True)
            found = (weight * x).square().sum(1)
            (force,) = torch.autograd.grad(found.sum(), x, create_graph=True)
            loss = (found - energy.detach()).square().sum() + (force - forces).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [graph.step.retained for graph in recording.graphs] == [None] * 9
    assert energy.grad_fn is not None
