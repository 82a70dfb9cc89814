"""Findings on a backward that came to what an earlier one had freed, and by which way.

Each program marks its lines; what PyTorch raises is the first witness, the marks the second.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import find, record
from tests.support.failing import TWICE, failing, leaf, line
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_a_state_that_goes_from_step_to_step() -> None:
    cell = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    def program() -> None:
        h = torch.zeros(2, 3)
        for _ in range(3):
            h = cell(torch.ones(2, 3), h)  # carries
            optimizer.zero_grad()
            h.sum().backward()  # backward
            optimizer.step()

    found = only("backward-twice", failing(program, TWICE, model=cell))
    run, carries = line(program, "backward"), line(program, "carries")
    assert found.message.startswith(f"backward at {run} failed: ")
    assert f" at {carries} uses " in found.message
    assert f" at {carries}, which backward at {run} had run" in found.message
    assert found.advice.startswith("Cut h off between the steps, h = h.detach(). ")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_state_of_pytorchs_own_modules(kind: type[nn.RNNBase]) -> None:
    model = kind(3, 3)

    def program() -> None:
        state = None
        for _ in range(3):
            y, state = model(torch.ones(2, 1, 3), state)
            y.sum().backward()

    found = only("backward-twice", failing(program, TWICE, model=model))
    assert found.advice.startswith("Cut state")


def test_what_was_computed_once_before_the_loop() -> None:
    x = leaf()

    def program() -> None:
        table = x.exp()  # once
        for _ in range(2):
            loss = (table * 2).sum()  # uses
            loss.backward()

    found = only("backward-twice", failing(program, TWICE))
    assert f"mul at {line(program, 'uses')} uses table at {line(program, 'once')}" in found.message
    assert found.advice.startswith("Cut table off between the steps, table = table.detach(). ")


def test_two_losses_of_one_trunk() -> None:
    x = leaf()

    def program() -> None:
        trunk = x.tanh()  # trunk
        one, other = trunk.sum(), trunk.square().sum()  # heads
        one.backward()  # first
        other.backward()

    found = only("backward-twice", failing(program, TWICE))
    assert (
        f"pow at {line(program, 'heads')} uses trunk at {line(program, 'trunk')}" in found.message
    )
    assert f"which backward at {line(program, 'first')} had run" in found.message
    assert found.advice.startswith("Add the losses")


def test_the_same_backward_twice() -> None:
    x = leaf()

    def program() -> None:
        loss = x.tanh().sum()
        loss.backward()  # first
        loss.backward()

    found = only("backward-twice", failing(program, TWICE))
    assert f"backward at {line(program, 'first')} had run the same graph" in found.message


def test_a_backward_before_the_recording() -> None:
    loss = leaf().tanh().sum()
    loss.backward()
    found = only("backward-twice", failing(loss.backward, TWICE))
    assert "an earlier backward had run the same graph" in found.message


def test_the_backward_that_freed_and_not_one_that_only_saw() -> None:
    x, w = leaf(), leaf()

    def program() -> None:
        trunk = x.tanh()
        loss = (trunk + w.sin()).sum()
        trunk.sum().backward()  # freed
        torch.autograd.grad(loss, [w], retain_graph=True)
        (trunk.detach() * w).sum().backward()
        loss.backward()

    for options in ({}, {"gradients": False}):
        found = only("backward-twice", failing(program, TWICE, **options))
        if not options:
            assert f"which backward at {line(program, 'freed')} had run" in found.message
        assert "add at" in found.message


def test_a_gradient_penalty_without_create_graph() -> None:
    x = leaf()

    def program() -> None:
        y = x.exp().sum()
        (gradient,) = torch.autograd.grad(y, x)  # grad
        (y + gradient.square().sum()).backward()

    found = only("backward-twice", failing(program, TWICE))
    assert f"which autograd.grad at {line(program, 'grad')} had run" in found.message
    assert f"Pass create_graph=True to autograd.grad at {line(program, 'grad')}" in found.advice


def test_only_the_step_that_fails_is_recorded() -> None:
    cell = nn.RNNCell(3, 3)

    def step(h: Tensor) -> Tensor:
        h = cell(torch.ones(2, 3), h)
        h.sum().backward()
        return h

    h = step(torch.zeros(2, 3))
    found = only("backward-twice", failing(lambda: step(h), TWICE, model=cell))
    assert "uses " in found.message
    assert "which an earlier backward had run" in found.message
    assert found.advice.startswith("Cut ")


def test_a_helper_that_is_called_twice_is_no_loop() -> None:
    x = leaf()

    def run(loss: Tensor) -> None:
        loss.backward()

    def program() -> None:
        trunk = x.tanh()
        one, other = trunk.sum(), trunk.square().sum()
        run(one)
        run(other)

    assert only("backward-twice", failing(program, TWICE)).advice.startswith("Add the losses")


def test_a_step_between_two_backwards_rules_out_adding_the_losses() -> None:
    g, d = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(d.parameters(), lr=0.1)

    def program() -> None:
        fake = g(torch.ones(2, 3))
        d(fake).mean().backward()
        optimizer.step()
        d(fake).mean().backward()

    found = only("backward-twice", failing(program, TWICE))
    assert found.advice.startswith("Cut fake off, with detach(), where only one")


def test_a_second_backward_that_the_program_catches_itself_is_told_too() -> None:
    model = torch.nn.Linear(4, 1)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).mean()
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        model(torch.randn(8, 4)).mean().backward()
    (found,) = (f for f in find(recording) if f.severity == "error")
    assert (found.rule, found.steps) == ("backward-twice", (1,))
    assert [graph.failure is None for graph in recording.graphs] == [True, False, True]
