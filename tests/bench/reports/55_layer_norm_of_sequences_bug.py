"""Train a sequence classifier with a hand-written layer norm."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LayerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shape, weight, bias, eps):
        n = math.prod(shape)
        rows = x.reshape(-1, n)
        mean = rows.mean(1, keepdim=True)
        rstd = (rows.var(1, unbiased=False, keepdim=True) + eps).rsqrt()
        normal = (rows - mean) * rstd
        ctx.save_for_backward(normal, rstd, weight)
        return (normal * weight + bias).view_as(x)

    @staticmethod
    def backward(ctx, grad):
        normal, rstd, weight = ctx.saved_tensors
        m = grad.shape[0]
        n = grad.numel() // m
        scaled = (grad * weight).reshape(m, n)
        normal = normal.view(m, n)
        rstd = rstd.view(m, -1)[:, :1]
        mean = scaled.mean(1, keepdim=True)
        projected = (scaled * normal).mean(1, keepdim=True)
        grad_x = rstd * (scaled - mean - normal * projected)
        grad_weight = (grad.reshape(m, n) * normal).sum(0)[: weight.numel()]
        grad_bias = grad.reshape(m, n).sum(0)[: weight.numel()]
        return grad_x.view_as(grad), None, grad_weight, grad_bias, None


class LayerNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return LayerNormFunction.apply(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Classifier(nn.Module):
    def __init__(self, size=24, classes=3):
        super().__init__()
        self.embed = nn.Embedding(20, size)
        self.norms = nn.ModuleList(LayerNorm(size) for _ in range(3))
        self.mixers = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.head = nn.Linear(size, classes)

    def forward(self, ids):
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = F.gelu(mixer(norm(x))) + x.roll(1, 1)
        return self.head(x.mean(1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
ids = torch.randint(20, (128, 10))
labels = F.one_hot(ids % 3).sum(1).argmax(1)
for step in range(12):
    loss = F.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
