"""Detector training that validates and saves averaged weights."""

import io

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class ExponentialMovingAverage:
    def __init__(self, model, decay=0.5):
        self.model, self.decay = model, decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.backup = {}

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def apply_shadow(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.clone()
            p.copy_(self.shadow[name])

    @torch.no_grad()
    def restore(self):
        for name, p in self.model.named_parameters():
            p.copy_(self.backup[name])


model = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
ema = ExponentialMovingAverage(model)
boxes = nn.Linear(12, 4).requires_grad_(False)
x_val = torch.randn(64, 12)
validation, checkpoint = [], None
for epoch in range(3):
    model.train()
    for _ in range(2):
        x = torch.randn(64, 12)
        loss = F.smooth_l1_loss(model(x), boxes(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    ema.apply_shadow()
    with torch.no_grad():
        validation.append(F.smooth_l1_loss(model(x_val), boxes(x_val)).item())
    torch.save(model.state_dict(), checkpoint := io.BytesIO())
    ema.restore()
    print(epoch, loss.item(), "validation", validation[-1])
