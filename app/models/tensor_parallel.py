"""Tensor parallel: two ranks share one batch; each stores half of both layers."""

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build(mesh):
    model = nn.Sequential()
    model.up, model.act, model.down = nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    batch = torch.randn(30, 16)  # the same on both ranks

    def step():
        loss = model(batch).square().mean()
        loss.backward()

    return model, step


# mypy: ignore-errors
