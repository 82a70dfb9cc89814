"""expects: not-registered. CLIP's logit_scale gets a gradient, but belongs to no optimizer."""

import torch
from bits import DEVICE, done
from torch import nn

images, texts = nn.Linear(32, 16).to(DEVICE), nn.Linear(24, 16).to(DEVICE)
logit_scale = nn.Parameter(torch.tensor(2.65, device=DEVICE))
optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters()], lr=1e-3)
losses = []
for _ in range(5):
    a = nn.functional.normalize(images(torch.randn(16, 32, device=DEVICE)), dim=-1)
    b = nn.functional.normalize(texts(torch.randn(16, 24, device=DEVICE)), dim=-1)
    logits = logit_scale.exp() * a @ b.T
    labels = torch.arange(16, device=DEVICE)
    loss = nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(
        logits.T, labels
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, nn.ModuleList([images, texts]))
