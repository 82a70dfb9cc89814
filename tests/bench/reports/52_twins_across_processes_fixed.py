"""Barlow Twins on two processes, with the correlation of the whole batch."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29561")
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dist.init_process_group("gloo", rank=rank, world_size=world_size)


class BarlowTwinsLoss(nn.Module):
    def __init__(self, lambda_param=5e-2, gather_distributed=True):
        super().__init__()
        self.lambda_param, self.gather_distributed = lambda_param, gather_distributed

    def forward(self, z_a, z_b):
        z_a = nn.functional.batch_norm(z_a, None, None, training=True)
        z_b = nn.functional.batch_norm(z_b, None, None, training=True)
        c = z_a.T @ z_b / len(z_a)
        if self.gather_distributed and dist.get_world_size() > 1:
            c = c / dist.get_world_size()
            c = torch.distributed.nn.all_reduce(c)
        diagonal = (torch.diagonal(c) - 1).square().sum()
        rest = c.square().sum() - torch.diagonal(c).square().sum()
        return diagonal + self.lambda_param * rest


torch.manual_seed(0)
network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
model = DistributedDataParallel(network)
criterion = BarlowTwinsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(32, 16, generator=generator)
    views = [x + 0.3 * torch.randn(32, 16, generator=generator) for _ in range(2)]
    z_a, z_b = model(torch.cat(views)).chunk(2)
    loss = criterion(z_a, z_b)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    print(step, "rank", rank, loss.item(), "gradient norm", norm.item())
dist.destroy_process_group()
