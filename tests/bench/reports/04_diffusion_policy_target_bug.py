"""Behaviour cloning with a diffusion policy that predicts the clean actions."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
STEPS = 20


class Denoiser(nn.Module):
    def __init__(self, act=4, obs=6, hidden=64):
        super().__init__()
        self.time = nn.Embedding(STEPS, 16)
        self.net = nn.Sequential(
            nn.Linear(act + obs + 16, hidden), nn.Mish(), nn.Linear(hidden, act)
        )

    def forward(self, x, t, obs):
        return self.net(torch.cat([x, self.time(t), obs], -1))


class DiffusionPolicy(nn.Module):
    def __init__(self, network, predict_epsilon=False):
        super().__init__()
        self.network, self.predict_epsilon = network, predict_epsilon
        betas = torch.linspace(1e-3, 0.2, STEPS)
        self.register_buffer("alphas", torch.cumprod(1 - betas, 0))

    def q_sample(self, x_start, t, noise):
        alpha = self.alphas[t][:, None]
        return alpha.sqrt() * x_start + (1 - alpha).sqrt() * noise

    def loss(self, x_start, obs):
        t = torch.randint(STEPS, (len(x_start),))
        noise = torch.randn_like(x_start)
        x_noisy = self.q_sample(x_start, t, noise)
        x_recon = self.network(x_noisy, t, obs)
        if self.predict_epsilon:
            return F.mse_loss(x_recon, noise)
        return F.mse_loss(x_recon, x_noisy)


policy = DiffusionPolicy(Denoiser())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
expert = nn.Linear(6, 4).requires_grad_(False)
for step in range(5):
    obs = torch.randn(64, 6)
    loss = policy.loss(expert(obs).tanh(), obs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
