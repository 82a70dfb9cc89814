"""Differentially private fine-tuning of the head by per-sample gradients."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

torch.manual_seed(0)


class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16 + 10, 3)

    def forward(self, x):
        return self.head(torch.cat([self.deep(x), x], -1))


model = WideAndDeep()
model.deep.requires_grad_(False)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.5)
CLIP, NOISE = 1.0, 0.01


def compute_loss(trainable, params, x, y):
    logits = functional_call(model, {**params, **trainable}, (x[None],))
    return F.cross_entropy(logits, y[None])


per_sample = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))
for step in range(5):
    x = torch.randn(32, 10)
    y = x[:, :3].argmax(1)
    params = {k: v.detach() for k, v in model.named_parameters()}
    trainable = {k: v for k, v in params.items() if k.startswith("head.")}
    grads = per_sample(trainable, params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    optimizer.zero_grad()
    for name, p in model.named_parameters():
        if name in grads:
            mean = torch.einsum("b,b...->...", factor, grads[name]) / len(x)
            p.grad = mean + NOISE * CLIP / len(x) * torch.randn_like(p)
    optimizer.step()
    print(step, F.cross_entropy(model(x), y).item(), "norm", norms.mean().item())
