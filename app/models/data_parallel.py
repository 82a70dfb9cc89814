"""Data parallel: what nn.DataParallel does, by hand: a part of the batch for each device."""

import torch
from torch import nn
from torch.func import functional_call


def build(devices):
    first = devices[0]
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).to(first)
    batch = torch.randn(30, 5)

    def loss():
        parts = batch.to(first).chunk(len(devices))
        outputs = []
        for part, device in zip(parts, devices, strict=False):
            replica = {name: weight.to(device) for name, weight in model.named_parameters()}
            output = functional_call(model, replica, part.to(device))
            outputs.append(output.to(first))
        return torch.cat(outputs).square().mean()

    return model, loss


# mypy: ignore-errors
