"""The model, the data and the loss of the trainings that test watch()."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch.recording.health import health


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let watch() read all gradients in each step, however busy the machine is."""
    monkeypatch.setattr(health, "_MIN_COST", 60.0)
    torch.manual_seed(0)


class Net(nn.Module):
    """A model of a body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x))
        return result


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 8)
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module) -> Tensor:
    x, y = batch()
    return nn.functional.mse_loss(model(x), y)
