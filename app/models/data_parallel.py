"""DataParallel: each device gets a part of a batch of 30; choose several devices to see it."""

import torch
from torch import nn


def build(devices):
    first = devices[0]
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).to(first)
    parallel = nn.DataParallel(model, device_ids=devices) if len(devices) > 1 else model
    batch = torch.randn(30, 5)

    def loss():
        return parallel(batch.to(first)).square().mean()

    return parallel, loss


# mypy: ignore-errors
