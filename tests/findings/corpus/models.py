"""The small models and batches that most healthy trainings use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def batch(classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6), torch.randint(classes, (16,))


def leaky_mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


def layers(*sizes: int) -> nn.Sequential:
    """Linear layers from each size to the next one, with ReLUs between them."""
    found: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        found += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def batches(count: int, classes: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    return (batch(classes) for _ in range(count))
