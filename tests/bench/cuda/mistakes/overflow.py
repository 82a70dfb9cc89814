"""expects: nonfinite-gradient. One row of the batch is zero, where a norm has no derivative."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Linear(16, 16, bias=False).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _ in range(3):
    x = torch.randn(8, 16, device=DEVICE)
    x[0] = 0
    loss = (model(x).square().sum(-1).sqrt() - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
