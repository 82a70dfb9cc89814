"""Align spots of a tissue with their expression by a contrastive loss with soft targets."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Projection(nn.Module):
    def __init__(self, inputs, size=16):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, size), nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        projected = self.first(x)
        return self.norm(self.second(F.gelu(projected)) + projected)


def cross_entropy(logits, targets):
    return (-targets * logits.log_softmax(-1)).sum(1)


class SpotModel(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.image, self.spot = Projection(48), Projection(24)
        self.temperature = temperature

    def forward(self, images, spots):
        image, spot = F.normalize(self.image(images), dim=1), F.normalize(self.spot(spots), dim=1)
        logits = (spot @ image.T) / self.temperature
        similarity = (image @ image.T + spot @ spot.T) / 2
        targets = F.softmax(similarity / self.temperature, dim=-1)
        loss = (cross_entropy(logits, targets) + cross_entropy(logits.T, targets.T)) / 2
        return loss.mean(), (logits.argmax(1) == torch.arange(len(logits))).float().mean()


model = SpotModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
to_image, to_spot = torch.randn(6, 48), torch.randn(6, 24)
for step in range(40):
    latent = torch.randn(32, 6)
    images = latent @ to_image + 0.1 * torch.randn(32, 48)
    spots = latent @ to_spot + 0.1 * torch.randn(32, 24)
    loss, accuracy = model(images, spots)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        print(step, loss.item(), "pairs found", accuracy.item())
