"""A training step for programs with tensors of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], list[Any]]  # returns results that a recording must not change
Program = Callable[[], tuple[nn.Module | None, Step]]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


X = torch.linspace(-1, 1, 32).reshape(4, 8)
RAGGED = [torch.linspace(0, 1, 4).reshape(2, 2), torch.linspace(1, 2, 6).reshape(3, 2)]


def steps_of(model: nn.Module, x: Tensor = X) -> Step:
    """Return a function that makes two SGD steps and returns losses, gradients and parameters."""

    def step() -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found: list[Any] = []
        for _ in range(2):
            loss = model(x).square().mean()
            loss.backward()
            found += [loss, *(p.grad for p in model.parameters())]
            optimizer.step()
            optimizer.zero_grad()
        return [*found, *model.parameters()]

    return step


def leaf_steps(*leaves: Tensor, loss: Callable[..., Any]) -> tuple[None, Step]:
    def step() -> list[Any]:
        for leaf in leaves:
            leaf.requires_grad_()
        value = loss(*leaves)
        value.backward()
        return [value, *(leaf.grad for leaf in leaves)]

    return None, step
