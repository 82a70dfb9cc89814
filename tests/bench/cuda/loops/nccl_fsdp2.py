"""expects: nothing. fully_shard on a mesh of one GPU, over NCCL, in bf16."""

import os

import torch
import torch.distributed as dist
from bits import DEVICE, done
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
os.environ["MASTER_PORT"] = os.environ.get("PORT", "29532")
dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
mesh = init_device_mesh(DEVICE, (1,))
blocks = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(3)]
model = nn.Sequential(*blocks, nn.Linear(64, 4)).to(DEVICE)
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for block in blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(4):
    x = torch.randn(16, 64, device=DEVICE)
    y = torch.randint(4, (16,), device=DEVICE)
    loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
whole = nn.ParameterList([one.full_tensor().detach() for one in model.parameters()])
done(losses, whole)
dist.destroy_process_group()
