"""Findings on memory, dtype and history, on recordings of models with common mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, find, record
from tests.support.models import MLP
from tests.support.recorded import only, serious, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_what_keeps_most_is_named_by_module() -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 2))
    found = only("most-memory", trained(model, torch.randn(2048, 64)))
    assert found.severity == "info"
    assert "most of it in module 1 (gelu, " in found.message  # GELU keeps its input, 4 MiB
    # Under a checkpoint a layer that saves its own input alone would keep as much.
    assert "run several layers around module 1 together under" in found.advice


def test_the_block_around_what_keeps_most_is_what_to_checkpoint() -> None:
    block = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 2))
    found = only("most-memory", trained(nn.ModuleList([block])[0], torch.randn(2048, 64)))
    assert "module 1" in found.message
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), block), nn.Tanh())
    found = only("most-memory", trained(model, torch.randn(2048, 64)))
    assert "most of it in 0.1.1 (gelu, " in found.message
    assert found.advice == "To trade time for memory, run 0.1 under torch.utils.checkpoint."


def test_a_batch_norm_is_not_to_be_run_twice() -> None:
    block = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 2))
    found = only("most-memory", trained(nn.Sequential(block), torch.randn(2048, 64)))
    assert found.advice.startswith("Use a smaller batch, or torch.utils.checkpoint around a part ")
    assert "without BatchNorm" in found.advice


def test_an_array_from_numpy_makes_float64_creep_in() -> None:
    scale = torch.from_numpy(np.ones(2))
    graph = trained(MLP(), torch.randn(64, 4), loss=lambda h: (h * scale).sum())
    found = only("float64-crept-in", graph)
    assert found.severity == "warning"
    assert found.where.startswith("test_memory.py:")
    assert serious(trained(MLP().double(), torch.randn(64, 4, dtype=torch.float64))) == []


def test_a_slice_that_keeps_its_storage_alive_is_found_and_a_clone_is_not() -> None:
    class Sliced(nn.Module):
        def __init__(self, clone: bool) -> None:
            super().__init__()
            self.fc, self.clone = nn.Linear(64, 64), clone

        def forward(self, x: Tensor) -> Tensor:
            row = (x + 1)[:4]
            return self.fc(row.clone() if self.clone else row)

    x = torch.randn(20_000, 64)
    assert only("view-keeps-storage", trained(Sliced(False), x)).severity == "warning"
    assert serious(trained(Sliced(True), x)) == []


def test_a_loss_that_is_summed_with_its_history_makes_the_graph_grow() -> None:
    model = MLP()
    total = torch.zeros(())
    with record(model) as recording:
        for _ in range(4):
            total = total + model(torch.randn(64, 4)).sum()
            total.backward(retain_graph=True)
    *previous, last = recording.graphs
    (found,) = [f for f in find(last, previous) if f.rule == "growing-graph"]
    assert found.where.startswith("test_memory.py:")


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


@pytest.mark.parametrize(
    ("count", "rounds", "log"),
    [
        (4, 1, lambda meter, loss: meter.add(loss.item())),
        (4, 1, lambda meter, loss: meter.append(loss.detach())),
        (4, 1, lambda meter, loss: loss),  # until the next one
        (1, 4, lambda meter, loss: meter.append(loss)),  # the parts of one step
        (2, 1, lambda meter, loss: meter.append(loss)),  # no trend yet
    ],
)
def test_a_loss_logged_without_its_history_or_kept_for_a_step_is_fine(
    count: int, rounds: int, log: Callable[[Meter, Tensor], object]
) -> None:
    assert steps(count, log, rounds).step.retained is None


def test_a_variable_that_keeps_history_is_named() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: Any = 0
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).sum()
            (loss / 2).backward()
            optimizer.step()
            total += loss
    found = only("kept-history", recording.graph)
    assert ": total keeps what test_memory.py:" in found.message


def loop(step: Callable[[], Any], count: int = 5) -> Graph:
    """The last graph of some steps, between which an optimizer steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with record() as recording:
        for _ in range(count):
            step()
            optimizer.step()
    return recording.graph


def test_a_loss_behind_a_detach_is_kept_whatever_becomes_of_what_was_cut_off() -> None:
    generator, critic, meter = nn.Linear(4, 1), nn.Linear(1, 1), Meter()

    def step() -> None:
        loss = critic(generator(torch.randn(8, 4)).detach()).mean()
        loss.backward()
        meter.add(loss)

    assert only("kept-history", loop(step)).message.startswith("The graphs of 4 earlier steps")


def test_what_backward_does_not_run_is_not_run_again() -> None:
    cell, head, state = nn.RNNCell(4, 4), nn.Linear(4, 1), [torch.zeros(2, 4)]

    def step() -> None:
        state[0] = cell(torch.randn(2, 4), state[0])
        head(state[0].detach()).mean().backward()

    found = only("kept-history", loop(step))
    assert ": state keeps what" in found.message  # of the closure
    assert "again" not in found.message


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


def test_a_part_that_another_backward_of_the_step_ran_is_no_history() -> None:
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    meter = Meter()

    def step() -> None:
        features = trunk(torch.randn(8, 4))
        heads[0](features).mean().backward(retain_graph=True)
        loss = heads[1](features).mean()
        loss.backward()
        meter.add(loss)

    message = only("kept-history", loop(step)).message
    assert "again" not in message
    assert "of 4 earlier steps" in message


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


def test_what_waits_for_the_collector_is_no_history() -> None:
    model = MLP()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        circle: list[Any] = [loss]
        circle.append(circle)

    assert loop(step, 20).step.retained is None


def test_two_results_kept_on_purpose_are_worth_knowing_and_no_more() -> None:
    model, best = MLP(), {}

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        if not best:
            best["low"] = loss.sin()
        elif len(best) == 1:
            best.update(high=Meter())
            best["high"].add(loss)

    found = only("kept-history", loop(step))
    assert (found.severity, found.where) == ("info", "")


def test_a_subclass_without_a_grad_fn_disturbs_nothing() -> None:
    class Odd(Tensor):
        @property
        def grad_fn(self) -> Any:
            raise AttributeError("none")

    odd, model, losses = torch.ones(2).as_subclass(Odd), MLP(), []

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        losses.append(loss)

    assert loop(step).step.retained is not None
    assert type(odd) is Odd


def test_a_state_carried_on_with_its_history_is_found_where_it_is_used_again() -> None:
    cell = nn.RNNCell(4, 4)
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    state = torch.zeros(2, 4)
    with record(cell) as recording:
        for _ in range(4):
            state = cell(torch.randn(2, 4), state)
            state.sum().backward(retain_graph=True)
            other.step()
    found = only("kept-history", recording.graph)
    assert "3 earlier steps are still alive, and backward runs through them again" in found.message
    (node,) = found.nodes
    nodes = recording.graph.nodes
    assert nodes[node].operation == "addmm"
    assert [n.order is not None for n in nodes] == [True] * len(nodes)
    assert not [f for f in find(recording.graph, recording.graphs[:-1]) if "growing" in f.rule]


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
