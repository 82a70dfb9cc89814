"""Healthy trainings whose loss is the residual of a differential equation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adam

from tests.findings.corpus.cases import Record, step


def tanh_layers(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def derivative(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def heat_in_a_rod_of_a_millimeter(record: Record) -> None:
    length, diffusivity = 1e-3, 1e-6
    model = tanh_layers(2, 20, 20, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(3):
            x = (torch.rand(64, 1) * length).requires_grad_()
            t = torch.rand(64, 1, requires_grad=True)
            u = model(torch.cat([torch.sin(20 * x / length), t], 1))
            residual = derivative(u, t) - diffusivity * derivative(derivative(u, x), x)
            at_start = torch.rand(64, 1)
            start = model(torch.cat([torch.sin(20 * at_start), torch.zeros(64, 1)], 1))
            profile = torch.sin(math.pi * at_start)
            step(optimizer, residual.square().mean() + (start - profile).square().mean())


def waves_of_shallow_water(record: Record) -> None:
    """The equation of Korteweg and de Vries, with a third derivative."""
    model = tanh_layers(2, 20, 20, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(3):
            x = (torch.rand(64, 1) / 10).requires_grad_()
            t = torch.rand(64, 1, requires_grad=True)
            u = model(torch.cat([torch.sin(20 * x / 0.1), t], 1))
            slope = derivative(u, x)
            third = derivative(derivative(slope, x), x)
            residual = derivative(u, t) + 6 * u * slope + 1e-3 * third
            step(optimizer, residual.square().mean() + u.square().mean())


def shock_of_burgers(record: Record) -> None:
    """Raissi, Perdikaris and Karniadakis 2019, with fewer points."""
    model = tanh_layers(2, *[20] * 8, 1)
    optimizer = LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    x = (2 * torch.rand(64, 1) - 1).requires_grad_()
    t = torch.rand(64, 1, requires_grad=True)
    known = torch.cat([2 * torch.rand(32, 1) - 1, torch.zeros(32, 1)], 1)
    values = -torch.sin(math.pi * known[:, :1])

    def closure() -> float:
        optimizer.zero_grad()
        u = model(torch.cat([x, t], 1))
        slope = derivative(u, x)
        residual = derivative(u, t) + u * slope - 0.01 / math.pi * derivative(slope, x)
        loss = (model(known) - values).square().mean() + residual.square().mean()
        loss.backward()
        return loss.item()

    with record(model):
        for _ in range(2):
            optimizer.step(closure)


def potential_of_charges_by_a_network_of_sines(record: Record) -> None:
    """Sitzmann and others 2020: the loss contains the Laplacian alone, which needs no bias."""

    class Sine(nn.Module):
        def __init__(self, inputs: int, outputs: int, bound: float) -> None:
            super().__init__()
            self.linear = nn.Linear(inputs, outputs)
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(30 * self.linear(x))

    bound = math.sqrt(6 / 32) / 30
    model = nn.Sequential(Sine(2, 32, 1 / 2), Sine(32, 32, bound), nn.Linear(32, 1))
    optimizer = Adam(model.parameters(), lr=1e-4)
    with record(model):
        for _ in range(3):
            x = (2 * torch.rand(64, 2) - 1).requires_grad_()
            field = derivative(model(x), x)
            laplacian = sum(derivative(field[:, i], x)[:, i] for i in range(2))
            charges = torch.sin(math.pi * x.detach()).prod(1)
            step(optimizer, (laplacian - charges).square().mean())
