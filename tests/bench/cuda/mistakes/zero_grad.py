"""expects: missing-zero-grad. zero_grad is never called."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _ in range(5):
    x = torch.randn(32, 16, device=DEVICE)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
