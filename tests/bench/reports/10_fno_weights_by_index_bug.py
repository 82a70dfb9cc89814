"""A Fourier neural operator whose layers keep their weights in one list."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class JointSpectralConv(nn.Module):
    def __init__(self, channels, modes, n_layers):
        super().__init__()
        self.modes = modes
        scale = 1 / channels**2
        self.weight = nn.ParameterList(
            nn.Parameter(scale * torch.randn(channels, channels, modes, modes, dtype=torch.cfloat))
            for _ in range(2 * n_layers)
        )

    def get_weight(self, index):
        return self.weight[index]

    def forward(self, x, indices=0):
        m, spectrum = self.modes, torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        for i, rows in enumerate([slice(None, m), slice(-m, None)]):
            weight = self.get_weight(indices + i)
            block = spectrum[:, :, rows, :m]
            out[:, :, rows, :m] = torch.einsum("bixy,ioxy->boxy", block, weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, channels=6, modes=4, n_layers=3):
        super().__init__()
        self.lift = nn.Conv2d(1, channels, 1)
        self.spectral = JointSpectralConv(channels, modes, n_layers)
        self.skips = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(n_layers))
        self.project = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        for index, skip in enumerate(self.skips):
            x = F.gelu(self.spectral(x, index) + skip(x))
        return self.project(x)


model = FNO()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    a = torch.randn(8, 1, 16, 16)
    u = a.cumsum(-1).roll(1, -2) / 8
    loss = F.mse_loss(model(a), u)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
