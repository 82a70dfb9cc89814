"""A pretrained trunk with a low rate, a new head with a high one, and a warmup schedule."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class WarmupLR:
    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=10):
        self.optimizer = optimizer
        if warmup_max_lr is None:
            warmup_max_lr = [group["lr"] for group in self.optimizer.param_groups][0]
        self.min_lrs = self._format_param(self.optimizer, warmup_min_lr, "min_lr")
        self.max_lrs = self._format_param(self.optimizer, warmup_max_lr, "max_lr")
        self.delta_lrs = [big - small for big, small in zip(self.max_lrs, self.min_lrs)]
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.inverse_log_warm_up = 1.0 / math.log(self.warmup_num_steps)
        self.last_batch_iteration = 0
        self._update_optimizer()

    def _format_param(self, optimizer, param_value, param_name):
        if isinstance(param_value, (list, tuple)):
            if len(param_value) != len(optimizer.param_groups):
                raise ValueError(f"expected {len(optimizer.param_groups)} values for {param_name}")
            return list(param_value)
        return [param_value] * len(optimizer.param_groups)

    def _get_gamma(self):
        if self.last_batch_iteration < self.warmup_num_steps:
            return self.inverse_log_warm_up * math.log(self.last_batch_iteration + 1)
        return 1.0

    def get_lr(self):
        gamma = self._get_gamma()
        return [small + delta * gamma for small, delta in zip(self.min_lrs, self.delta_lrs)]

    def _update_optimizer(self):
        for param_group, lr in zip(self.optimizer.param_groups, self.get_lr()):
            param_group["lr"] = lr

    def step(self):
        self.last_batch_iteration += 1
        self._update_optimizer()


trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
head = nn.Linear(64, 1)
optimizer = torch.optim.Adam(
    [{"params": trunk.parameters(), "lr": 1e-5}, {"params": head.parameters(), "lr": 1e-2}]
)
scheduler = WarmupLR(optimizer)
x = torch.randn(128, 10)
y = x[:, :3].sum(1, keepdim=True)
for step in range(60):
    loss = F.mse_loss(head(trunk(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        print(step, loss.item())
