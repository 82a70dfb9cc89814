"""DeepSpeed's ZeRO, stage 2.

torchrun --nproc-per-node=4 --no-python graphviz-torch run deepspeed_zero.py
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, config=config, dist_init_required=False
)
torch.manual_seed(1 + dist.get_rank())
for _ in range(2):
    engine.backward(engine(torch.randn(8, 16)).square().mean())
    engine.step()
