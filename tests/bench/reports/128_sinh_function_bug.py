"""An energy model with a sinh activation of its own, fitted to forces."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Sinh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        expx = torch.exp(x)
        expnegx = torch.exp(-x)
        ctx.save_for_backward(expx, expnegx)
        return (expx - expnegx) / 2

    @staticmethod
    def backward(ctx, grad_out):
        expx, expnegx = ctx.saved_tensors
        return grad_out * (expx + expnegx) / 2


class Energy(nn.Module):
    def __init__(self, dim=3, hidden=32):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, x):
        x = Sinh.apply(2.0 * self.fc1(x))
        x = Sinh.apply(self.fc2(torch.tanh(x)))
        return self.out(x).squeeze(-1)


def true_energy(x):
    return 0.5 * (x ** 2 * torch.tensor([1.0, 2.0, 0.5])).sum(-1) + x[:, 0] * x[:, 1]


positions = torch.rand(256, 3) * 2 - 1
positions.requires_grad_(True)
target = -torch.autograd.grad(true_energy(positions).sum(), positions)[0]

model = Energy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(100):
    energy = model(positions)
    forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
    loss = F.mse_loss(forces, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
print("forces", loss.item())
