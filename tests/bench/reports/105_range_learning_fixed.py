"""Quantization-aware training with learned scales and zero points."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        return input.round()

    @staticmethod
    def backward(ctx, gy):
        return gy


def fake_quantize(input, scales, zero_points, quant_min, quant_max):
    q = _Round.apply(input / scales + zero_points).clamp(quant_min, quant_max)
    return (q - zero_points) * scales


class FakeQuantizer(nn.Module):
    def __init__(self, bits=4):
        super().__init__()
        self.quant_min, self.quant_max = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.scale = None
        self.zero_point = None

    def initialize(self, w):
        max_abs = w.detach().abs().amax(dim=1, keepdim=True)
        self.scale = nn.Parameter(4 * max_abs / self.quant_max)
        self.zero_point = nn.Parameter(torch.zeros_like(max_abs))

    def forward(self, w):
        return fake_quantize(w, self.scale, self.zero_point, self.quant_min, self.quant_max)


class FakeQuantizedLinear(nn.Linear):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.weight_fake_quantizer = FakeQuantizer()
        self.weight_fake_quantizer.initialize(self.weight)

    def forward(self, x):
        return F.linear(x, self.weight_fake_quantizer(self.weight), self.bias)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = FakeQuantizedLinear(16, 32)
        self.linear2 = FakeQuantizedLinear(32, 4)

    def forward(self, x):
        return self.linear2(F.relu(self.linear1(x)))


x = torch.randn(256, 16)
y = x @ torch.randn(16, 4) * 0.3
model = M()
scales = {k: v.clone() for k, v in model.state_dict().items() if k.endswith("scale")}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")
for name, value in scales.items():
    now = model.state_dict()[name]
    print(f"{name}: {value.mean().item():.4f} -> {now.mean().item():.4f}")
