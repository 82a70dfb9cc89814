"""Pipeline: the first half on one device, the second half on the next."""

import torch
from torch import nn


class Pipeline(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.encoder = nn.Sequential(nn.Linear(10, 10), nn.ReLU()).to(first)
        self.decoder = nn.Linear(10, 5).to(second)

    def forward(self, x):
        hidden = self.encoder(x.to(self.first))
        return self.decoder(hidden.to(self.second))


def build(devices):
    model = Pipeline(devices[0], devices[-1])
    x, target = torch.randn(20, 10), torch.randn(20, 5)

    def loss():
        y = model(x)
        return nn.functional.mse_loss(y, target.to(y.device))

    return model, loss


# mypy: ignore-errors
