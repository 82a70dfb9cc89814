"""Fine-tune an image diffusion model with generalized offset noise."""

import torch
from torch import nn

torch.manual_seed(0)
STEPS, STRENGTH = 50, 0.5
betas = torch.linspace(1e-4, 0.12, STEPS)
alphas = 1 - betas
alphas_cumprod = torch.cumprod(alphas, 0)


class UNet(nn.Module):
    def __init__(self, channels=3, width=16):
        super().__init__()
        self.time = nn.Embedding(STEPS, width)
        self.inner = nn.Conv2d(channels, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.outer = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x, t):
        hidden = torch.relu(self.inner(x) + self.time(t)[:, :, None, None])
        return self.outer(torch.relu(self.middle(hidden)))


def offset_noise(images, t):
    noise = torch.randn_like(images)
    offset = torch.randn(*images.shape[:2], 1, 1)
    previous = alphas[(t - 1).clamp(min=0)]
    psi = STRENGTH * (1 - previous) / (1 - alphas_cumprod[t]).sqrt()
    return noise + psi[:, None, None, None] * offset


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(8):
    images = torch.rand(32, 3, 8, 8).round() * torch.rand(32, 1, 1, 1)
    t = torch.randint(STEPS, (32,))
    noise = offset_noise(images, t)
    kept = alphas_cumprod[t][:, None, None, None]
    noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise
    loss = (model(noisy, t) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "deviation of the offset", noise.mean((2, 3)).std().item())
