"""Tensor parallelism within each row of ranks, and fully_shard between the rows.

torchrun --nproc-per-node=4 --no-python graphviz-torch run tensor_parallel_fsdp2.py
"""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = {"up": nn.Linear(16, 32), "act": nn.ReLU(), "down": nn.Linear(32, 16)}
model = nn.Sequential(OrderedDict(layers))
shape = dist.get_world_size() // 2, 2
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
for layer in (model.up, model.down, model):
    fully_shard(layer, mesh=mesh["dp"])

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1 + mesh["dp"].get_local_rank())
for _ in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
