"""A pipeline: each rank has one layer, and micro-batches pass through the ranks (schedule 1F1B).

torchrun --nproc-per-node=4 --no-python graphviz-torch run pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
layer = nn.Linear(16, 16)
stage = PipelineStage(layer, rank, ranks, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=ranks, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
torch.manual_seed(1)
for _ in range(2):
    batch, target = torch.randn(8, 16), torch.randn(8, 16)
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(batch)
    elif rank == ranks - 1:
        schedule.step(target=target)
    else:
        schedule.step()
    optimizer.step()
dist.destroy_process_group()
