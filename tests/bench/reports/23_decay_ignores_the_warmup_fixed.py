"""An optimizer with its own warm-up, warm-down and decoupled weight decay."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

torch.manual_seed(0)


class WarmAdam(Optimizer):
    def __init__(self, params, lr, steps, warmup=4, betas=(0.9, 0.999), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.steps, self.warmup, self.count = steps, warmup, 0

    def warm_up(self, lr):
        return lr * min(1.0, self.count / self.warmup)

    def warm_down(self, lr):
        rest = (self.steps - self.count + 1) / (self.steps - self.warmup)
        return lr * min(1.0, rest)

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            lr = self.warm_down(self.warm_up(group["lr"]))
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                p.mul_(1 - lr * group["weight_decay"])
                m = state["m"].lerp_(p.grad, 1 - beta1) / (1 - beta1**self.count)
                v = state["v"].lerp_(p.grad.square(), 1 - beta2) / (1 - beta2**self.count)
                p.sub_(lr * m / (v.sqrt() + 1e-8))


model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = WarmAdam(model.parameters(), lr=0.05, steps=8, weight_decay=0.5)
for step in range(6):
    x = torch.randn(64, 10)
    loss = F.mse_loss(model(x).squeeze(1), x[:, :4].sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "norm", model[0].weight.norm().item())
