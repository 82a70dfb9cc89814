"""DistributedDataParallel that sends its gradients in half precision.

torchrun --nproc-per-node=4 --no-python graphviz-torch run ddp_compressed.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
model = nn.parallel.DistributedDataParallel(model)
model.register_comm_hook(None, fp16_compress_hook)

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())
for _ in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
