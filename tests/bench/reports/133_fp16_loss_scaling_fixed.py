"""Consistency-style training in fp16 with a loss scaling option."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Precond(nn.Module):
    def __init__(self, dim=16, hidden=128, sigma_data=0.5):
        super().__init__()
        self.sigma_data = sigma_data
        self.model = nn.Sequential(
            nn.Linear(dim + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, dim),
        )

    def forward(self, x, sigma):
        c_skip = self.sigma_data ** 2 / (sigma ** 2 + self.sigma_data ** 2)
        c_out = sigma * self.sigma_data / (sigma ** 2 + self.sigma_data ** 2).sqrt()
        c_in = 1 / (self.sigma_data ** 2 + sigma ** 2).sqrt()
        inner = torch.cat([c_in * x, sigma.log() / 4], 1)
        with torch.autocast("cpu", dtype=torch.float16):
            F_x = self.model(inner)
        return c_skip * x + c_out * F_x.float()


class Loss:
    def __call__(self, net, images):
        rnd = torch.randn(len(images), 1)
        sigma = (rnd * 1.2 - 1.2).exp()
        weight = (sigma ** 2 + 0.25) / (sigma * 0.5) ** 2
        noise = torch.randn_like(images) * sigma
        return weight * (net(images + noise, sigma) - images) ** 2


def training_loop(net, loss_fn, data, steps=150, loss_scaling=2.0 ** 16):
    optimizer = torch.optim.RAdam(net.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
    for step in range(steps):
        images = data()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(net=net, images=images)
        scaler.scale(loss.mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 15 == 0:
            print(step, loss.mean().item())


basis = torch.randn(4, 16) * 0.3


def data(batch=256):
    return torch.randn(batch, 4) @ basis


training_loop(Precond(), Loss(), data)
