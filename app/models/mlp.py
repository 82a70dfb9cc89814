"""MLP: two linear layers and a ReLU, classifying 32 points."""

import torch
from torch import nn


def build(devices):
    device = devices[0]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    points = torch.randn(32, 8)
    classes = torch.randint(0, 3, (32,))

    def loss():
        scores = model(points.to(device))
        return nn.functional.cross_entropy(scores, classes.to(device))

    return model, loss


# mypy: ignore-errors
