"""fully_shard: each rank keeps a shard of each parameter, and gathers all shards for each use.

torchrun --nproc-per-node=4 --no-python graphviz-torch run fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())
for _ in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
