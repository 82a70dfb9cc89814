"""Quantization-aware training of a filter for complex signals."""

import torch
from torch import nn

torch.manual_seed(0)


class MinMaxObserver(nn.Module):
    def __init__(self, quant_min=-128, quant_max=127):
        super().__init__()
        self.quant_min = quant_min
        self.quant_max = quant_max
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))

    def forward(self, x_orig):
        x = x_orig.detach()
        if x.is_complex():
            x = torch.view_as_real(x)
        x = x.to(self.min_val.dtype)
        min_val_cur, max_val_cur = torch.aminmax(x)
        self.min_val.copy_(torch.min(min_val_cur, self.min_val))
        self.max_val.copy_(torch.max(max_val_cur, self.max_val))
        return x_orig

    def calculate_qparams(self):
        max_val_pos = torch.max(-self.min_val, self.max_val)
        return max_val_pos / ((self.quant_max - self.quant_min) / 2)


class FakeQuantize(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation_post_process = MinMaxObserver()
        self.observer_enabled = True

    def forward(self, x):
        if self.observer_enabled:
            self.activation_post_process(x)
        scale = self.activation_post_process.calculate_qparams().item()
        parts = torch.fake_quantize_per_tensor_affine(torch.view_as_real(x), scale, 0, -128, 127)
        return torch.view_as_complex(parts)


class ComplexFilter(nn.Module):
    def __init__(self, taps=8):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(taps, taps, dtype=torch.complex64))
        self.input_quant = FakeQuantize()
        self.output_quant = FakeQuantize()

    def forward(self, x):
        return self.output_quant(self.input_quant(x) @ self.weight)


channel = torch.randn(8, 8, dtype=torch.complex64) / 3
model = ComplexFilter()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
for step in range(30):
    signal = torch.complex(torch.randn(128, 8), 12 * torch.randn(128, 8))
    wanted = signal @ channel
    if step == 15:
        model.input_quant.observer_enabled = False
    loss = (model(signal) - wanted).abs().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")

with torch.no_grad():
    quantized = model.input_quant(signal)
print(f"largest imaginary part {signal.imag.abs().max().item():.2f}, after quantization {quantized.imag.abs().max().item():.2f}")
print(f"quantization error {(quantized - signal).abs().mean().item():.4f}")
