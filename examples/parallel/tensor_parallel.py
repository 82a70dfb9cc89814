"""Tensor parallelism: the weight of one layer is sharded by columns, the next by rows.

torchrun --nproc-per-node=4 --no-python graphviz-torch run tensor_parallel.py
"""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = {"up": nn.Linear(16, 32), "act": nn.ReLU(), "down": nn.Linear(32, 16)}
model = nn.Sequential(OrderedDict(layers))
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1)
for _ in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
