"""Fine-tune a network whose batch norms are merged into its layers for attribution."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def set_parameters(linear, weight, bias):
    linear.weight = nn.Parameter(weight.detach())
    linear.bias = nn.Parameter(bias.detach())


@contextmanager
def merged(linear, norm):
    """Put the norm's scale and shift into the layer before it."""
    weight, bias = linear.weight, linear.bias
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    set_parameters(linear, weight * scale[:, None], (bias - norm.running_mean) * scale + norm.bias)
    norm.forward = lambda x: x
    try:
        yield
    finally:
        del norm.forward
        for name, parameter in (("weight", weight), ("bias", bias)):
            linear.__dict__.pop(name, None)
            linear._parameters[name] = parameter


model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
x = torch.randn(256, 12) * 2 + 1
y = (x[:, :3] * x[:, 3:6]).argmax(1)
with torch.no_grad():
    for _ in range(20):
        model(x)
model.eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
start = model[0].weight.detach().clone()
for step in range(12):
    with merged(model[0], model[1]):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    moved = (model[0].weight - start).abs().max().item()
    print(step, loss.item(), "first layer moved by", moved)
