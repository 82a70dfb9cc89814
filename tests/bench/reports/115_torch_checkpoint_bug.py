"""Pose-guided diffusion in which the residual blocks are checkpointed."""

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def torch_checkpoint(func, args, flag, preserve_rng_state=False):
    if flag:
        return torch.utils.checkpoint.checkpoint(func, *args, use_reentrant=True, preserve_rng_state=preserve_rng_state)
    return func(*args)


class ResBlock(nn.Module):
    def __init__(self, channels, dropout=0.5, use_checkpoint=True):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.in_layers = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.emb_layers = nn.Linear(channels, channels)
        self.cond_emb_layers = nn.Linear(channels, channels)
        self.out_layers = nn.Sequential(nn.SiLU(), nn.Dropout(dropout), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x, emb=None, cond=None):
        return torch_checkpoint(self._forward, (x, emb, cond), self.use_checkpoint)

    def _forward(self, x, emb, cond):
        h = self.in_layers(x)
        h = h * (1 + self.emb_layers(emb)[..., None, None]) + self.cond_emb_layers(cond)[..., None, None]
        return x + self.out_layers(h)


class BeatGANsAutoencModel(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.time_embed = nn.Sequential(nn.Linear(1, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.inp = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.ModuleList(ResBlock(channels) for _ in range(6))
        self.out = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, x, t, x_cond):
        emb = self.time_embed(t[:, None].float() / 50)
        cond = self.encoder(x_cond)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, emb=emb, cond=cond)
        return self.out(h)


def make_images(n):
    yy, xx = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    cy, cx = torch.randint(1, 7, (2, n, 1, 1))
    pose = ((yy - cy).abs() + (xx - cx).abs() == 0).float()[:, None]
    person = ((yy - cy).abs() + (xx - cx).abs() < 3).float()[:, None] * 2 - 1
    return person, pose


alphas_cumprod = torch.linspace(0.99, 0.05, 50)
model = BeatGANsAutoencModel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def training_loss(x_start, pose, t, noise):
    a = alphas_cumprod[t].view(-1, 1, 1, 1)
    return F.mse_loss(model(a.sqrt() * x_start + (1 - a).sqrt() * noise, t, pose), noise)


for step in range(20):
    x_start, pose = make_images(32)
    loss = training_loss(x_start, pose, torch.randint(0, 50, (32,)), torch.randn_like(x_start))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 19:
        print(f"step {step}: loss {loss.item():.4f}")

grads = []
batch = *make_images(32), torch.randint(0, 50, (32,)), torch.randn(32, 1, 8, 8)
for use_checkpoint in (True, False):
    torch.manual_seed(1)
    for block in model.blocks:
        block.use_checkpoint = use_checkpoint
    optimizer.zero_grad()
    training_loss(*batch).backward()
    grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
print(f"relative difference of the gradients with and without checkpoints: {((grads[0] - grads[1]).norm() / grads[1].norm()).item():.4f}")
