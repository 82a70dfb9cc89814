"""Detached layer: one layer is cut off by detach(), another is never called."""

import torch
from torch import nn


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.spare = nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x).relu().detach()
        return self.second(hidden)


def build(devices):
    device = devices[0]
    model = Detached().to(device)
    x = torch.randn(16, 8)

    def loss():
        return model(x.to(device)).square().mean()

    return model, loss


# mypy: ignore-errors
