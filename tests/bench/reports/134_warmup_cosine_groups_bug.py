"""A warmup-cosine schedule over two parameter groups."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def update_lr(param_groups, lrs):
    for param_group, lr in zip(param_groups, lrs):
        param_group["lr"] = lr
    return [group["lr"] for group in param_groups]


class WarmupCosineLR:
    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=10,
                 cos_min_ratio=0.01, last_batch_iteration=-1):
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.last_batch_iteration = last_batch_iteration
        self.cos_min_ratio = cos_min_ratio
        self.warmup_min_ratio = warmup_min_ratio
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.inverse_log_warm_up = 1.0 / math.log(self.warmup_num_steps)
        self.org_lrs = [group["lr"] for group in self.optimizer.param_groups]
        if last_batch_iteration == -1:
            self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())

    def get_lr_ratio(self):
        if self.last_batch_iteration < 0:
            return 0.0
        if self.last_batch_iteration < self.warmup_num_steps:
            ratio = self.inverse_log_warm_up * math.log(self.last_batch_iteration + 1)
            return self.warmup_min_ratio + ratio * (1.0 - self.warmup_min_ratio)
        real_last_step = self.last_batch_iteration - self.warmup_num_steps + 1
        real_total_steps = self.total_num_steps - self.warmup_num_steps
        ratio_delta = 1.0 - self.cos_min_ratio
        ratio = (1 + math.cos(math.pi * real_last_step / real_total_steps)) / 2
        return max(0.0, self.cos_min_ratio + ratio_delta * ratio)

    def get_lr(self):
        if self.last_batch_iteration < 0:
            return [0.0]
        lr_ratio = self.get_lr_ratio()
        return [org_lr * lr_ratio for org_lr in self.org_lrs]

    def step(self, last_batch_iteration=None):
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())


model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
decay = [p for p in model.parameters() if p.ndim > 1]
no_decay = [p for p in model.parameters() if p.ndim == 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=1e-2
)
scheduler = WarmupCosineLR(optimizer, total_num_steps=60, warmup_min_ratio=0.1)
x = torch.randn(128, 10)
y = x[:, :3].sum(1, keepdim=True).sin()
for step in range(60):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    lrs = [group["lr"] for group in optimizer.param_groups]
    optimizer.step()
    scheduler.step()
    if step < 5 or step % 10 == 0:
        print(step, loss.item(), lrs)
