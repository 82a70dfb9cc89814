"""Custom Function: a rounding that lets gradients through, written by hand."""

import torch
from torch import nn


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps):
        ctx.save_for_backward(x)
        return torch.round(x * steps) / steps

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1), None  # passes the gradient through where |x| <= 1


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Round.apply(self.linear(x), 8)


def build(devices):
    device = devices[0]
    model = Quantized().to(device)
    x = torch.randn(16, 4)

    def loss():
        return model(x.to(device)).square().mean()

    return model, loss


# mypy: ignore-errors
