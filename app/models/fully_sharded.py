"""FSDP2: each rank has its own batch, and stores half of each layer until the layer runs."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = nn.Sequential()
    model.up, model.act, model.down = nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    batch = torch.randn(30, 16) + torch.distributed.get_rank()

    def step():
        loss = model(batch).square().mean()
        loss.backward()

    return model, step


# mypy: ignore-errors
