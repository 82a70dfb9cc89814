"""Train a conditional flow between two distributions along a Schroedinger bridge."""

import torch
from torch import nn

torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self, dim=2, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim + 1, width), nn.SELU(), nn.Linear(width, width), nn.SELU(), nn.Linear(width, dim)
        )

    def forward(self, t, x):
        return self.net(torch.cat([x, t], 1))


class SBCFM(nn.Module):
    def __init__(self, sigma_min=0.5):
        super().__init__()
        self.net = Field()
        self.sigma_min = sigma_min
        self.criterion = nn.MSELoss()

    def step(self, x0, x1):
        t = torch.rand(x1.shape[0], 1) * 0.96 + 0.02
        mu_t = t * x1 + (1 - t) * x0
        sigma_t = self.sigma_min * torch.sqrt(t - t**2)
        x = mu_t + sigma_t * torch.randn_like(x0)
        sigma_t_prime_over_sigma_t = (1 - 2 * t) / (2 * t * (1 - t))
        ut = sigma_t_prime_over_sigma_t * (x - mu_t) + x1 - x0
        aug_x = self.net(t[:1], x[:1])
        return self.criterion(aug_x, ut[:1])


def moons(count):
    angle = torch.rand(count) * torch.pi
    upper = (torch.rand(count) > 0.5).float()
    x = torch.stack([angle.cos() + (1 - upper), torch.where(upper > 0, angle.sin(), 0.5 - angle.sin())], 1)
    return 3 * x + 0.1 * torch.randn(count, 2)


model = SBCFM()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(400):
    x0 = torch.randn(256, 2)
    x1 = moons(256)
    optimizer.zero_grad()
    loss = model.step(x0, x1)
    loss.backward()
    optimizer.step()
    if step % 80 == 79:
        print(step, "loss", loss.item())

with torch.no_grad():
    losses = []
    for _ in range(20):
        x0, x1, t = torch.randn(256, 2), moons(256), torch.rand(256, 1)
        losses.append(((model.net(t, t * x1 + (1 - t) * x0) - (x1 - x0)) ** 2).mean())
    print("validation", torch.stack(losses).mean().item())
