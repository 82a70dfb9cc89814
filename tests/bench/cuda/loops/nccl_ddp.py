"""expects: nothing. DistributedDataParallel with one rank, over NCCL, with no_sync."""

import os

import torch
import torch.distributed as dist
from bits import DEVICE, done
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ["MASTER_PORT"] = os.environ.get("PORT", "29531")
dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", rank=0, world_size=1)
model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 4)).to(
    DEVICE
)
parallel = DistributedDataParallel(model, device_ids=[0] if DEVICE == "cuda" else None)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    for part in range(2):
        x = torch.randn(16, 64, device=DEVICE)
        y = torch.randint(4, (16,), device=DEVICE)
        parallel.require_backward_grad_sync = part == 1
        loss = nn.functional.cross_entropy(parallel(x), y) / 2
        loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
dist.destroy_process_group()
