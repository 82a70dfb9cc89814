"""Train with an optimizer that has stable weight decay and a norm loss."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Ranger(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-4, normloss_factor=1e-4):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.normloss_factor = normloss_factor

    @torch.no_grad()
    def step(self):
        param_size, variance_ma_sum = 0, 0.0
        # phase 1: the sum of all variances
        for group in self.param_groups:
            beta2 = group["betas"][1]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["grad_ma"] = torch.zeros_like(p)
                    state["variance_ma"] = torch.zeros_like(p)
                state["step"] += 1
                state["variance_ma"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                variance_ma_sum += (state["variance_ma"] / (1 - beta2 ** state["step"])).sum()
                param_size += p.numel()
        variance_normalized = math.sqrt(variance_ma_sum / param_size)
        # phase 2: apply weight decay and step
        for group in self.param_groups:
            lr, decay, eps = group["lr"], group["weight_decay"], group["eps"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if decay:
                    p.mul_(1 - decay * lr / variance_normalized)
                if self.normloss_factor:
                    correction = 2 * self.normloss_factor * (1 - 1 / (p.norm() + eps))
                    p.mul_(1 - lr * correction)
                state = self.state[p]
                state["grad_ma"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                denominator = (state["variance_ma"] / (1 - beta2 ** state["step"])).sqrt().add_(eps)
                p.addcdiv_(state["grad_ma"] / (1 - beta1 ** state["step"]), denominator, value=-lr)


inputs = torch.randn(60, 40)
labels = (inputs[:, :3].sum(1) > 0).long()
test = torch.randn(1000, 40)
test_labels = (test[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = Ranger(model.parameters(), lr=3e-3, weight_decay=2e-2)
for epoch in range(150):
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 30 == 29:
        with torch.no_grad():
            val = F.cross_entropy(model(test), test_labels).item()
        norm = torch.stack([p.detach().norm() for p in model.parameters()]).norm().item()
        print(epoch, "loss", loss.item(), "validation", val, "norm of the weights", norm)
