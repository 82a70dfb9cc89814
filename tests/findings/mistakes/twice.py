"""Backwards that reach a graph which an earlier backward has freed.

Two sources give the expected line: the exception that PyTorch raises, and comments in the program.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says
from tests.support.failing import leaf

RULE = "backward-twice"


@says(
    RULE,
    "backward at {backward} failed: ",
    " at {carries} uses ",
    " at {carries}, which backward at {backward} had run",
    advice="Detach h between the steps, with h = h.detach(). ",
)
def state_that_goes_from_step_to_step(record: Record) -> None:
    cell = nn.RNNCell(3, 3)
    optimizer = SGD(cell.parameters(), lr=0.1)
    with record(cell):
        h = torch.zeros(2, 3)
        for _ in range(3):
            h = cell(torch.ones(2, 3), h)  # carries
            optimizer.zero_grad()
            h.sum().backward()  # backward
            optimizer.step()


def recurrent(kind: type[nn.RNNBase]) -> Program:
    def program(record: Record) -> None:
        model, state = kind(3, 3), None
        with record(model):
            for _ in range(3):
                y, state = model(torch.ones(2, 1, 3), state)
                y.sum().backward()

    program.__name__ = f"state_of_pytorchs_{kind.__name__}"
    return program


for kind in (nn.LSTM, nn.GRU, nn.RNN):
    says(RULE, advice="Detach state")(recurrent(kind))


@says(
    RULE,
    "mul at {uses} uses table at {once}",
    advice="Detach table between the steps, with table = table.detach(). ",
)
def table_computed_once_before_the_loop(record: Record) -> None:
    with record():
        table = leaf().exp()  # once
        for _ in range(2):
            loss = (table * 2).sum()  # uses
            loss.backward()


@says(
    RULE,
    "pow at {heads} uses trunk at {trunk}",
    "which backward at {first} had run",
    advice="Add the losses",
)
def two_losses_of_one_trunk(record: Record) -> None:
    with record():
        trunk = leaf().tanh()  # trunk
        one, other = trunk.sum(), trunk.square().sum()  # heads
        one.backward()  # first
        other.backward()


@says(
    RULE,
    "backward at {first} had run the same graph",
    advice="Call backward() once, or pass retain_graph=True to the first.",
)
def same_backward_twice(record: Record) -> None:
    with record():
        loss = leaf().tanh().sum()
        loss.backward()  # first
        loss.backward()  # cause


@says(RULE, "an earlier backward had run the same graph")
def backward_before_the_recording(record: Record) -> None:
    loss = leaf().tanh().sum()
    loss.backward()
    with record():
        loss.backward()


@says(RULE, "add at", "which backward at {freed} had run")
def first_of_three_that_alone_freed(record: Record) -> None:
    x, w = leaf(), leaf()
    with record():
        trunk = x.tanh()
        loss = (trunk + w.sin()).sum()
        trunk.sum().backward()  # freed
        torch.autograd.grad(loss, [w], retain_graph=True)
        (trunk.detach() * w).sum().backward()
        loss.backward()


@says(RULE, "add at")
def trunk_freed_where_gradients_are_not_looked_at(record: Record) -> None:
    with record(gradients=False):
        trunk = leaf().tanh()
        loss = (trunk + leaf().sin()).sum()
        trunk.sum().backward()
        loss.backward()


@says(
    RULE,
    "which autograd.grad at {grad} had run",
    advice="Pass create_graph=True to autograd.grad at {grad}",
)
def gradient_penalty_without_create_graph(record: Record) -> None:
    x = leaf()
    with record():
        y = x.exp().sum()
        (gradient,) = torch.autograd.grad(y, x)  # grad
        (y + gradient.square().sum()).backward()


@says(RULE, "uses ", "which an earlier backward had run", advice="Detach ")
def step_that_fails_recorded_alone(record: Record) -> None:
    cell = nn.RNNCell(3, 3)

    def step(h: Tensor) -> Tensor:
        h = cell(torch.ones(2, 3), h)
        h.sum().backward()
        return h

    h = step(torch.zeros(2, 3))
    with record(cell):
        step(h)


@says(RULE, advice="Add the losses")
def function_called_for_each_loss(record: Record) -> None:
    def run(loss: Tensor) -> None:
        loss.backward()

    with record():
        trunk = leaf().tanh()
        one, other = trunk.sum(), trunk.square().sum()
        run(one)
        run(other)


@says(RULE, advice="Detach fake if only one")
def step_between_two_backwards(record: Record) -> None:
    g, d = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = SGD(d.parameters(), lr=0.1)
    with record():
        fake = g(torch.ones(2, 3))
        d(fake).mean().backward()
        optimizer.step()
        d(fake).mean().backward()
