"""Fit the drive of an oscillator by the adjoint method."""

import itertools

import torch
from torch import nn

torch.manual_seed(0)
TIMES = torch.linspace(0, 2, 41)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.drive = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
        self.damping = nn.Parameter(torch.tensor(0.1))

    def forward(self, t, y):
        swapped = torch.stack([y[..., 1], -4 * y[..., 0]], -1)
        return swapped - self.damping * y + self.drive(t.view(1))


class AdjointEuler(torch.autograd.Function):
    @staticmethod
    def forward(ctx, field, y, *parameters):
        ctx.field, states = field, [y]
        with torch.no_grad():
            for t, after in itertools.pairwise(TIMES):
                y = y + (after - t) * field(t, y)
                states.append(y)
        ctx.save_for_backward(*states)
        return y

    @staticmethod
    def backward(ctx, adjoint):
        states, field = ctx.saved_tensors, ctx.field
        parameters = list(field.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        for i in range(len(TIMES) - 1):
            step = TIMES[i + 1] - TIMES[i]
            with torch.enable_grad():
                y = states[-2 - i].detach().requires_grad_()
                slope = field(TIMES[i], y)
            found = torch.autograd.grad(slope, [y, *parameters], step * adjoint)
            adjoint = adjoint + found[0]
            total = [a + b for a, b in zip(total, found[1:], strict=False)]
        return None, adjoint, *total


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
start = torch.randn(16, 2)
target = start * torch.tensor([0.5, -0.5]) + torch.tensor([1.0, 0.0])
for step in range(15):
    final = AdjointEuler.apply(field, start, *field.parameters())
    loss = (final - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        print(step, loss.item())
