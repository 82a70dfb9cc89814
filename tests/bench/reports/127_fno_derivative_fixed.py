"""A Fourier neural operator learns the solution of u'(x) = a(x) from the equation alone."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class SpectralConv1d(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x):
        x_ft = torch.fft.rfft(x)
        out = torch.zeros_like(x_ft)
        out[..., :self.modes] = torch.einsum("bix,iox->box", x_ft[..., :self.modes], self.weights)
        return torch.fft.irfft(out, n=x.shape[-1])


class FNO1d(nn.Module):
    def __init__(self, modes=8, width=24):
        super().__init__()
        self.fc0 = nn.Conv1d(2, width, 1)
        self.conv0, self.conv1 = SpectralConv1d(width, modes), SpectralConv1d(width, modes)
        self.w0, self.w1 = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.fc1 = nn.Conv1d(width, 1, 1)

    def forward(self, a, grid):
        x = self.fc0(torch.stack([a, grid], 1))
        x = F.gelu(self.conv0(x) + self.w0(x))
        x = F.gelu(self.conv1(x) + self.w1(x))
        return self.fc1(x).squeeze(1)


def derivative(u, grid):
    k = torch.arange(u.shape[-1] // 2 + 1) * 1j
    return torch.fft.irfft(k * torch.fft.rfft(u), n=u.shape[-1])


n = 64
points = torch.arange(n) * (2 * math.pi / n)
model = FNO1d()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(150):
    k = torch.arange(1, 4.)
    c, s = torch.randn(2, 16, 3, 1)
    waves = k[:, None] * points
    a = (c * waves.cos() + s * waves.sin()).sum(1)
    exact = ((c * waves.sin() - s * waves.cos()) / k[:, None]).sum(1)
    grid = points.expand(16, n).clone().requires_grad_(True)
    u = model(a, grid)
    u_x = derivative(u, grid)
    loss = F.mse_loss(u_x, a) + u.mean(1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(step, "loss", loss.item(), "error", F.mse_loss(u, exact).item())
print("error", F.mse_loss(u, exact).item(), "of", exact.pow(2).mean().item())
