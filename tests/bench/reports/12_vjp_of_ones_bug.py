"""Inverse design: optimise a grating through a simulator written in NumPy."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
SCATTER = rng.normal(size=(12, 12)) / np.sqrt(12)


def simulate(density):
    """Returns the transmission of each mode and the function of its vjp."""
    field = SCATTER @ density
    transmission = np.tanh(field) ** 2

    def vjp(cotangent):
        slope = 2 * np.tanh(field) / np.cosh(field) ** 2
        return SCATTER.T @ (slope * cotangent)

    return transmission, vjp


class Simulator(torch.autograd.Function):
    @staticmethod
    def forward(ctx, density):
        out, ctx.vjp = simulate(density.detach().double().numpy())
        return torch.as_tensor(out, dtype=density.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        grad = ctx.vjp(np.ones(grad_output.shape))
        return torch.as_tensor(grad, dtype=grad_output.dtype) * grad_output


class Designer(nn.Module):
    def __init__(self):
        super().__init__()
        self.latent = nn.Parameter(torch.randn(4))
        self.decode = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 12))

    def forward(self):
        return self.decode(self.latent).sigmoid()


model = Designer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
target = torch.zeros(12)
target[3] = 1.0
for step in range(6):
    density = model()
    transmission = Simulator.apply(density)
    loss = (transmission - target).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
