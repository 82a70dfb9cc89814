"""Train a diffusion model that predicts the velocity, with min-SNR weights."""

import torch
from torch import nn

torch.manual_seed(0)
STEPS, GAMMA = 100, 5.0
alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.08, STEPS), 0)


class Denoiser(nn.Module):
    def __init__(self, size=2, hidden=64):
        super().__init__()
        self.time = nn.Embedding(STEPS, hidden)
        self.first = nn.Linear(size, hidden)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, size)
        )

    def forward(self, noisy, t):
        return self.net(self.first(noisy) + self.time(t))


def compute_snr(t):
    return alphas_cumprod[t] / (1 - alphas_cumprod[t])


def loss_weights(t, prediction_type):
    snr = compute_snr(t)
    if prediction_type == "v_prediction":
        snr = snr + 1
    return torch.minimum(snr, torch.full_like(snr, GAMMA)) / snr


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(24):
    clean = torch.randn(256, 2) * 0.1 + torch.randint(2, (256, 1)) * 2 - 1
    noise = torch.randn_like(clean)
    t = torch.randint(STEPS, (256,))
    scale, sigma = alphas_cumprod[t].sqrt()[:, None], (1 - alphas_cumprod[t]).sqrt()[:, None]
    noisy = scale * clean + sigma * noise
    velocity = scale * noise - sigma * clean
    error = (model(noisy, t) - velocity).square().mean(1)
    loss = (error * loss_weights(t, "v_prediction")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    late = loss_weights(torch.tensor([STEPS - 1]), "v_prediction").item()
    if step % 4 == 3:
        print(step, loss.item(), "weight of the last step", late)
