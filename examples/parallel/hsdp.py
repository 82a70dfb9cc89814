"""fully_shard on a grid of ranks: each row of ranks shards a copy of the model.

torchrun --nproc-per-node=4 --no-python graphviz-torch run hsdp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
mesh = init_device_mesh(
    "cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard")
)
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
