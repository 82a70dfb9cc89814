"""expects: loss-input. A softmax before cross_entropy."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(5):
    x = torch.randn(32, 16, device=DEVICE)
    loss = nn.functional.cross_entropy(model(x), torch.randint(4, (32,), device=DEVICE))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
