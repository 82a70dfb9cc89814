"""Learn the length scale of a Gaussian process from observed gradients."""

import torch
from torch import nn
from torch.func import grad, jacrev, vmap

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def rbf(x1, x2, length):
    diff = x1 / length - x2 / length
    return torch.exp(-(diff * diff).sum())


class GradientProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw_length = nn.Parameter(torch.tensor(0.5))
        self.raw_noise = nn.Parameter(torch.tensor(0.0))

    def covariance(self, x):
        length = nn.functional.softplus(self.raw_length)
        kernel = jacrev(grad(rbf, argnums=0), argnums=1)
        blocks = vmap(vmap(kernel, (None, 0, None)), (0, None, None))(x, x, length)
        count, dim = x.shape
        return blocks.transpose(1, 2).reshape(count * dim, count * dim)

    def forward(self, x, gradients):
        covariance = self.covariance(x)
        noise = nn.functional.softplus(self.raw_noise)
        covariance = covariance + noise * torch.eye(len(covariance))
        y = gradients.reshape(-1)
        _, logdet = torch.linalg.slogdet(covariance)
        return (y @ torch.linalg.solve(covariance, y) + logdet) / len(y)


x = 4 * torch.rand(14, 2)
# samples of a process with length scale 1.5
weights = torch.randn(200, 2) * 2**0.5 / 1.5
phase = 2 * torch.pi * torch.rand(200)
amplitude = torch.randn(200) * (2 / 200) ** 0.5
gradients = -(torch.sin(x @ weights.T + phase) * amplitude) @ weights
model = GradientProcess()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(100):
    loss = model(x, gradients)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        length = nn.functional.softplus(model.raw_length).item()
        noise = nn.functional.softplus(model.raw_noise).item()
        print(step, "loss", loss.item(), "length", length, "noise", noise)
