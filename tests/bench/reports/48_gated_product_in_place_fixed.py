"""A transformer block with a fused gated product that saves memory in backward."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        (out,) = ctx.saved_tensors
        return grad_output * out


def swiglu_kernel_backward(grad, gate, up):
    """Run the backward of the gated product."""
    sigmoid = torch.sigmoid(gate)
    grad_up = grad * gate * sigmoid
    grad_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    return grad_gate, grad_up


class FusedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = swiglu_kernel_backward(grad_output, gate.detach(), up.detach())
        return grad_gate.clone(), grad_up.clone()


class Block(nn.Module):
    def __init__(self, size=16, hidden=32):
        super().__init__()
        self.gate, self.up = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.down = nn.Linear(hidden, size)

    def forward(self, x):
        gate = Exponential.apply(self.gate(x).clamp(max=3))
        return x + self.down(FusedSwiGLU.apply(gate, self.up(x)))


model = nn.Sequential(Block(), nn.LayerNorm(16), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(256, 16)
y = (x[:, :1] * x[:, 1:2]).tanh()
for step in range(10):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
