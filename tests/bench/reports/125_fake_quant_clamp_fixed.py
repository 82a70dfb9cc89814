"""Quantization-aware training with affine fake quantization of the weights."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gy):
        return gy


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, quant_min, quant_max):
        ctx.save_for_backward(x)
        ctx.bounds = quant_min, quant_max
        return torch.clamp(x, quant_min, quant_max)

    @staticmethod
    def backward(ctx, gy):
        (x,), (quant_min, quant_max) = ctx.saved_tensors, ctx.bounds
        keep = (x >= quant_min) & (x <= quant_max)
        return torch.where(keep, gy, torch.zeros_like(gy)), None, None


def fake_quantize(weight, quant_min=-2, quant_max=1):
    scale = weight.detach().abs().amax(1, keepdim=True) / ((quant_max - quant_min) / 2)
    quant = _Clamp.apply(_Round.apply(weight * (1.0 / scale)), quant_min, quant_max)
    return quant * scale


class FakeQuantizedLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, fake_quantize(self.weight), self.bias)


model = nn.Sequential(
    FakeQuantizedLinear(16, 64), nn.ReLU(), FakeQuantizedLinear(64, 64), nn.ReLU(), nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(256, 16)
y = (x[:, :4].sum(1, keepdim=True) * 0.5 + x[:, 5:6] * x[:, 6:7])
for step in range(60):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
