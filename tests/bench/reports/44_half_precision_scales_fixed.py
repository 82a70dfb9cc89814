"""Tune the rounding of four-bit weights with signed gradients, block by block."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
BITS = 4


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class QuantizedLinear(nn.Module):
    def __init__(self, linear, group=8):
        super().__init__()
        self.group = group
        self.register_buffer("weight", linear.weight.detach())
        self.register_buffer("bias", linear.bias.detach())
        self.rounding = nn.Parameter(torch.zeros_like(self.weight))
        self.stretch = nn.Parameter(torch.ones(self.weight.numel() // group, 1))

    def quantized(self):
        groups = self.weight.view(-1, self.group)
        largest = groups.abs().amax(1, keepdim=True) * self.stretch.clamp(0.5, 1.0)
        scale = (largest / (2 ** (BITS - 1) - 1)).clamp(min=1e-5).to(torch.float16).float()
        steps = RoundSTE.apply(groups / scale + self.rounding.view(-1, self.group))
        steps = steps.clamp(-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1)
        return (steps * scale).view_as(self.weight)

    def forward(self, x):
        return F.linear(x, self.quantized(), self.bias)


class Experts(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.up, self.down = nn.Linear(size, 64), nn.Linear(64, size)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


block = Experts()
with torch.no_grad():
    block.up.weight[5] *= 1e-9
quantized = Experts()
quantized.up, quantized.down = QuantizedLinear(block.up), QuantizedLinear(block.down)
optimizer = torch.optim.Adam(quantized.parameters(), lr=5e-3)
x = torch.randn(128, 32)
target = block(x).detach()
for step in range(8):
    loss = F.mse_loss(quantized(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
