"""LSTM: one cell unrolled over 12 steps, its weights shared by all of them."""

import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, steps):
        hidden = cell = steps.new_zeros(steps.shape[1], 16)
        for step in steps:
            hidden, cell = self.cell(step, (hidden, cell))
        return self.head(hidden)


def build(devices):
    device = devices[0]
    model = Sequence().to(device)
    steps = torch.randn(12, 4, 6)
    target = torch.randn(4, 1)

    def loss():
        return nn.functional.mse_loss(model(steps.to(device)), target.to(device))

    return model, loss


# mypy: ignore-errors
