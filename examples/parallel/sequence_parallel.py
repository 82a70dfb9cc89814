"""Sequence parallelism: also the norm is computed on a shard of the rows on each rank.

torchrun --nproc-per-node=4 --no-python graphviz-torch run sequence_parallel.py
"""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = {"norm": nn.LayerNorm(16), "up": nn.Linear(16, 32), "down": nn.Linear(32, 16)}
model = nn.Sequential(OrderedDict(layers))
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
plan = {
    "": PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),), use_local_output=False
    ),
    "norm": SequenceParallel(sequence_dim=0),
    "up": ColwiseParallel(input_layouts=Shard(0)),
    "down": RowwiseParallel(),
}
parallelize_module(model, mesh, plan)

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1)
for _ in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
