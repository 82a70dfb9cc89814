"""Training of a denoiser that is interrupted and started again from its checkpoint."""

import os
import tempfile
from collections import OrderedDict
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Denoiser(nn.Module):
    def __init__(self, dim=16, hidden=96):
        super().__init__()
        self.t_embed = nn.Embedding(100, hidden)
        self.inp, self.mid = nn.Linear(dim, hidden), nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.t_embed(t))
        return self.out(h + F.silu(self.mid(h)))


@torch.no_grad()
def update_ema(ema_model, model, decay=0.995):
    ema_params = OrderedDict(ema_model.named_parameters())
    for name, param in model.named_parameters():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


alphas_bar = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 100), 0)
basis = torch.randn(3, 16)


def main(train_steps, max_steps, pretrained=None, ckpt_path=None):
    model = Denoiser()
    if pretrained:
        checkpoint = torch.load(pretrained)
        model.load_state_dict(checkpoint["model"])
    ema = deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0)
    if pretrained:
        ema.load_state_dict(checkpoint["ema"])
        opt.load_state_dict(checkpoint["opt"])
    else:
        update_ema(ema, model, decay=0)
    running_loss, log_steps = 0, 0
    while train_steps < max_steps:
        x = torch.tanh(torch.randn(64, 3) @ basis)
        t = torch.randint(0, 100, (64,))
        noise = torch.randn_like(x)
        ab = alphas_bar[t][:, None]
        loss = F.mse_loss(model(ab.sqrt() * x + (1 - ab).sqrt() * noise, t), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model)
        running_loss += loss.item()
        log_steps += 1
        train_steps += 1
        if train_steps % 20 == 0:
            print(f"(step={train_steps:07d}) Train Loss: {running_loss / log_steps:.4f}")
            running_loss, log_steps = 0, 0
    if ckpt_path:
        state = {"model": model.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict()}
        torch.save(state, ckpt_path)


path = os.path.join(tempfile.mkdtemp(), "0000120.pt")
main(0, 120, ckpt_path=path)
print("resume")
main(120, 200, pretrained=path)
