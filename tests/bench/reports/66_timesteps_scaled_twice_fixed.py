"""Train a small velocity model by flow matching with a sinusoidal embedding of the time."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def timestep_embedding(t, dim, max_period=10000):
    t = t * 1000
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half) / half)
    args = t[:, None] * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class Velocity(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.size = size
        self.x_in = nn.Linear(2, size)
        self.time_in = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(size, size), nn.SiLU(), nn.Linear(size, 2))

    def forward(self, x, t):
        return self.body(self.x_in(x) + self.time_in(timestep_embedding(t, self.size)))


def data(count):
    angle = torch.rand(count) * 2 * math.pi
    return torch.stack([3 * angle.cos(), 3 * angle.sin()], 1) + 0.05 * torch.randn(count, 2)


model = Velocity()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
total = 0.0
for step in range(1, 601):
    x1 = data(256)
    x0 = torch.randn_like(x1)
    timesteps = torch.rand(len(x1))
    t_vec = timesteps
    x_t = (1 - timesteps[:, None]) * x1 + timesteps[:, None] * x0
    velocity = model(x_t, t_vec)
    loss = F.mse_loss(velocity, x0 - x1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    if step % 100 == 0:
        print(step, "loss", total / 100)
        total = 0.0
