"""The small model and the batch that most healthy trainings take."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def batch(classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6), torch.randint(classes, (16,))
