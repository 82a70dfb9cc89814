"""Mistakes with memory: the largest activations, float64, and graphs of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD

from graphviz_torch import Graph
from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says, silent
from tests.support.models import MLP


def wide(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 512), *between, nn.Linear(512, 2))


@says(
    "most-memory",
    "most of it in module 1 (gelu, ",  # which keeps its input, 4 MiB
    severity="info",  # under a checkpoint a layer that saves its own input would keep as much
)
def activation_that_keeps_most(record: Record) -> None:
    model = wide(nn.GELU())
    with record(model):
        model(torch.randn(2048, 64)).sum().backward()


@says(
    "most-memory",
    "most of it in 0.1 (gelu, ",
    advice="To save memory at the cost of time, run module 0 under torch.utils.checkpoint: about",
)
def block_around_what_keeps_most(record: Record) -> None:
    model = nn.Sequential(wide(nn.GELU()), nn.Linear(2, 512), nn.Tanh(), nn.Linear(512, 2))
    with record(model):
        model(torch.randn(2048, 64)).sum().backward()


@says("most-memory")
def batch_norm_that_may_not_run_twice(record: Record) -> None:
    model = nn.Sequential(wide(nn.BatchNorm1d(512), nn.ReLU()))
    with record(model):
        model(torch.randn(2048, 64)).sum().backward()


@says("unintended-float64", severity="info")
def sum_that_was_cast_and_what_joins_it(record: Record) -> None:
    model, others = nn.Linear(4, 3), torch.zeros(8, dtype=torch.float64)
    with record(model):
        sums = model(torch.randn(8, 4)).sum(1)
        (sums.double().square() + (others + sums)).mean().backward()


@says("unintended-float64", severity="warning")
def array_from_numpy(record: Record) -> None:
    model, scale = MLP(), torch.from_numpy(np.ones(2))
    with record(model):
        (model(torch.randn(64, 4)) * scale).sum().backward()  # cause


def sliced(clone: bool) -> Program:
    class Sliced(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            row = (x + 1)[:4]
            return super().forward(row.clone() if clone else row)

    def program(record: Record) -> None:
        model, x = Sliced(64, 64), torch.randn(20_000, 64)
        with record(model):
            model(x).sum().backward()

    program.__name__ = "slice_that_was_cloned" if clone else "slice_that_keeps_its_storage_alive"
    return program


says("view-retains-storage", severity="warning")(sliced(clone=False))
silent()(sliced(clone=True))


@silent()
def last_of_a_sequence_that_keeps_little_of_it_all(record: Record) -> None:
    recurrent = nn.LSTM(16, 128, num_layers=2, batch_first=True)
    head = nn.Linear(128, 4)
    with record():
        results, _ = recurrent(torch.randn(64, 64, 16))
        head(results[:, -1]).square().mean().backward()


@says("retained-graph")
def loss_summed_with_its_history(record: Record) -> None:
    model, total = MLP(), torch.zeros(())
    with record(model):
        for _ in range(4):
            total = total + model(torch.randn(64, 4)).sum()  # cause
            total.backward(retain_graph=True)


@silent("retained-graph")
def sequence_that_is_longer_in_each_step(record: Record) -> None:
    """As a horizon that grows, in a curriculum: nothing is carried over."""
    cell = nn.RNNCell(4, 4)
    with record(cell):
        for length in range(1, 6):
            state = torch.zeros(2, 4)
            for _ in range(length):
                state = cell(torch.randn(2, 4), state)
            state.sum().backward()


class Meter:
    """What people log with."""

    def __init__(self) -> None:
        self.total: Any = 0
        self.all: list[Any] = []

    def add(self, value: Any) -> None:
        self.total = self.total + value

    def append(self, value: Any) -> None:
        self.all.append(value)


def loop(record: Record, step: Callable[[], Any], count: int = 5) -> Graph:
    """The last graph of some steps, between which an optimizer steps."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with record() as recording:
        for _ in range(count):
            step()
            optimizer.step()
    return recording.graph


Log = Callable[[Meter, Tensor], object]


def logged(log: Log, name: str) -> Callable[[Record], Graph]:
    """A training loop that logs its loss."""

    def program(record: Record) -> Graph:
        model, meter, kept = MLP(), Meter(), None

        def step() -> None:
            nonlocal kept
            loss = model(torch.randn(8, 4)).sum()
            loss.backward()
            kept = log(meter, loss)

        return loop(record, step, 4)

    program.__name__ = f"loss_{name}"
    return program


LOGS: dict[str, Log] = {
    "added_as_a_number": lambda meter, loss: meter.add(loss.item()),
    "listed_without_its_history": lambda meter, loss: meter.append(loss.detach()),
    "kept_until_the_next": lambda meter, loss: loss,
}
for name, log in LOGS.items():
    silent("retained-graph")(logged(log, name))


@silent("retained-graph")
def one_function_that_trains_two_players(record: Record) -> None:
    player, rival = MLP(), nn.Linear(4, 1)
    optimizers = SGD(player.parameters(), lr=0.01), SGD(rival.parameters(), lr=0.01)
    log: tuple[Tensor, ...] = ()

    def update(loss: Tensor, optimizer: SGD) -> Tensor:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with record():
        for _ in range(5):
            x = torch.randn(8, 4)
            first = update(player(x).square().mean(), optimizers[0])
            second = update(rival(x).square().mean(), optimizers[1])
            log = (first, second)  # of one step, until the next
    del log


@silent("retained-graph")
def one_line_that_trains_several_models(record: Record) -> None:
    models = [nn.Linear(4, 1) for _ in range(4)]
    optimizers = [SGD(model.parameters(), lr=0.01) for model in models]
    losses: list[Tensor] = []
    with record():
        for _ in range(5):
            x, last, losses = torch.randn(8, 4), losses, []
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                losses.append(model(x).square().mean())
                losses[-1].backward()
                optimizer.step()
    del last


@says("retained-graph", ": total keeps the result of memory.py:")
def one_function_whose_losses_are_added_up(record: Record) -> None:
    models = [nn.Linear(4, 1) for _ in range(2)]
    total = torch.zeros(())

    def update(loss: Tensor, optimizer: SGD) -> Tensor:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [SGD(model.parameters(), lr=0.01) for model in models]
    with record():
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                total = total + update(model(torch.randn(8, 4)).square().mean(), optimizer)


@says("retained-graph", ": total keeps the result of memory.py:")
def variable_that_keeps_history(record: Record) -> None:
    model, total = MLP(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).sum()
            (loss / 2).backward()
            optimizer.step()
            total += loss


@says("retained-graph", "The graphs of 4 earlier steps")
def loss_behind_a_detach(record: Record) -> None:
    generator, critic, meter = nn.Linear(4, 1), nn.Linear(1, 1), Meter()

    def step() -> None:
        loss = critic(generator(torch.randn(8, 4)).detach()).mean()
        loss.backward()
        meter.add(loss)

    loop(record, step)


@says("retained-graph", "still in memory: state keeps the result of")
def state_of_a_closure_that_backward_does_not_run(record: Record) -> None:
    cell, head, state = nn.RNNCell(4, 4), nn.Linear(4, 1), [torch.zeros(2, 4)]

    def step() -> None:
        state[0] = cell(torch.randn(2, 4), state[0])
        head(state[0].detach()).mean().backward()

    loop(record, step)


@says("retained-graph", "of 4 earlier steps are still in memory: ")
def part_that_another_backward_of_the_step_ran(record: Record) -> None:
    trunk, heads, meter = nn.Linear(4, 4), [nn.Linear(4, 1), nn.Linear(4, 1)], Meter()

    def step() -> None:
        features = trunk(torch.randn(8, 4))
        heads[0](features).mean().backward(retain_graph=True)
        loss = heads[1](features).mean()
        loss.backward()
        meter.add(loss)

    loop(record, step)


@silent("retained-graph")
def circle_that_waits_for_the_collector(record: Record) -> None:
    model = MLP()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        circle: list[Any] = [loss]
        circle.append(circle)

    loop(record, step, 20)


@says("retained-graph", severity="info")
def two_results_kept_on_purpose(record: Record) -> None:
    model, best = MLP(), dict[str, Any]()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        if not best:
            best["low"] = loss.sin()
        elif len(best) == 1:
            best.update(high=Meter())
            best["high"].add(loss)

    loop(record, step)


@says("retained-graph")
def list_beside_a_subclass_without_a_grad_fn(record: Record) -> None:
    class Odd(Tensor):
        @property
        def grad_fn(self) -> Any:
            raise AttributeError("none")

    odd, model, losses = torch.ones(2).as_subclass(Odd), MLP(), list[Tensor]()

    def step() -> None:
        loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        losses.append(loss)

    loop(record, step)
    assert type(odd) is Odd


@says("retained-graph", "3 earlier steps are still in memory, and backward runs through them again")
def state_carried_on_with_its_history(record: Record) -> None:
    cell, state = nn.RNNCell(4, 4), torch.zeros(2, 4)
    other = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with record(cell):
        for _ in range(4):
            state = cell(torch.randn(2, 4), state)  # cause
            state.sum().backward(retain_graph=True)
            other.step()
