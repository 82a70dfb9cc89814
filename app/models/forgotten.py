"""Forgotten .to(): the mask stays on the CPU, so the second operation fails on an accelerator."""

import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mask = torch.tensor([1.0, 0.0, 1.0, 0.0])  # not a buffer: model.to() does not move it

    def forward(self, x):
        return self.linear(x) * self.mask


def build(devices):
    device = devices[0]
    model = Masked().to(device)
    x = torch.randn(6, 4)

    def loss():
        return model(x.to(device)).square().mean()

    return model, loss


# mypy: ignore-errors
