"""Derivatives by an input, through a detached value or of summed components."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent


def forces(record: Record, describe: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x = torch.randn(16, 1, requires_grad=True)
            energy = model(torch.cat([x, describe(x)], 1))
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            step(optimizer, energy.square().mean() + force.square().mean())


@says("incomplete-derivative", "cut by detach", "lacks a part")
def detached_descriptor(record: Record) -> None:
    forces(record, lambda x: x.square().detach())


@says("incomplete-derivative", "cut by no_grad")
def descriptor_without_gradients(record: Record) -> None:
    def describe(x: Tensor) -> Tensor:
        with torch.no_grad():
            squares = x.square()
            return squares * 2

    forces(record, describe)


@silent("incomplete-derivative")
def a_whole_derivative(record: Record) -> None:
    forces(record, torch.square)


@silent("incomplete-derivative")
def a_detached_maximum(record: Record) -> None:
    forces(record, lambda x: x - x.max().detach())


@silent("incomplete-derivative")
def a_detached_value_that_is_compared(record: Record) -> None:
    forces(record, lambda x: x * (x.square().detach() < 0.5).float())


@silent("incomplete-derivative")
def a_detached_value_that_is_rounded(record: Record) -> None:
    """As of distances in a periodic box."""
    forces(record, lambda x: x - 2 * torch.round(x.detach() / 2))


@says("incomplete-derivative", "cut by detach")
def a_detached_value_beside_its_mask(record: Record) -> None:
    forces(record, lambda x: x.square().detach() * (x.detach() < 0.5).float())


@silent("incomplete-derivative")
def a_detached_value_of_the_parameters(record: Record) -> None:
    scale = nn.Parameter(torch.ones(1))
    forces(record, lambda x: x * scale.exp().detach())


@silent("incomplete-derivative")
def gradients_by_parameters(record: Record) -> None:
    model = nn.Linear(2, 1)
    with record(model):
        y = model(torch.randn(8, 2))
        gradient = torch.autograd.grad((y**2 * y.detach()).mean(), model.weight, create_graph=True)[
            0
        ]
        gradient.square().sum().backward()


@silent("incomplete-derivative")
def neighbors_found_without_gradients(record: Record) -> None:
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x = torch.rand(6, 3, requires_grad=True)
            with torch.no_grad():
                near = torch.cdist(x, x) < 0.8
                first, second = near.nonzero().T
            distance = (x[first] - x[second]).square().sum(1, keepdim=True)
            inside = torch.where(distance.detach() < 0.5, distance, 0.5)
            energy = model(inside).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
            step(optimizer, energy.square() + force.square().mean())


def second_derivative(record: Record, size: int, weight: Callable[[Tensor], Tensor]) -> None:
    net = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(net):
        x = torch.rand(16, size, requires_grad=True)
        (du,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du, x, weight(du), create_graph=True)  # cause
        ddu.square().mean().backward()


@says("summed-derivative", "the sum of the 3 components")
def second_derivative_of_a_whole_gradient(record: Record) -> None:
    second_derivative(record, 3, torch.ones_like)


@silent("summed-derivative")
def second_derivative_by_the_only_component(record: Record) -> None:
    second_derivative(record, 1, torch.ones_like)


@silent("summed-derivative")
def product_of_the_hessian_and_a_random_vector(record: Record) -> None:
    second_derivative(record, 3, torch.randn_like)


@silent("summed-derivative")
def derivative_of_a_vector_field(record: Record) -> None:
    net = nn.Linear(3, 3)
    with record(net):
        x = torch.rand(16, 3, requires_grad=True)
        field = net(x).tanh()
        (slope,) = torch.autograd.grad(field, x, torch.ones_like(field), create_graph=True)
        slope.square().mean().backward()


def derivatives_by_rows(record: Record, loss_of: Callable[[Tensor, list[Tensor]], Tensor]) -> None:
    """A loss of a weight or of its rows, which is differentiated by each row."""
    weight = nn.Parameter(torch.randn(3, 4))
    optimizer = SGD([weight], lr=0.1)
    with record():
        for _ in range(2):
            rows = list(weight)
            loss = loss_of(weight, rows)
            for row in rows:
                torch.autograd.grad(loss, row, retain_graph=True, allow_unused=True)  # cause
            step(optimizer, loss)


@says("unused-derivative-input", "always returns None for row", "depends on weight, but not on row")
def derivatives_by_rows_that_the_loss_does_not_use(record: Record) -> None:
    derivatives_by_rows(record, lambda weight, rows: weight.square().mean())


@silent("unused-derivative-input")
def derivatives_by_rows_that_the_loss_uses(record: Record) -> None:
    derivatives_by_rows(record, lambda weight, rows: torch.stack(rows).square().mean())


@silent("unused-derivative-input")
def derivatives_by_rows_one_of_which_the_loss_uses(record: Record) -> None:
    derivatives_by_rows(record, lambda weight, rows: rows[1].square().mean())


@silent("unused-derivative-input")
def derivatives_by_parameters_that_are_not_used(record: Record) -> None:
    model, other = nn.Linear(4, 1), nn.Linear(4, 1)
    with record(model):
        loss = model(torch.randn(8, 4)).square().mean()
        assert torch.autograd.grad(
            loss, [*other.parameters()], retain_graph=True, allow_unused=True
        ) == (None, None)
        loss.backward()
