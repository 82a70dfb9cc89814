"""expects: nothing. torch.cuda.make_graphed_callables around a part of the model."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()).to(DEVICE)
head = nn.Linear(64, 4).to(DEVICE)
if DEVICE == "cuda":
    model = torch.cuda.make_graphed_callables(model, (torch.randn(16, 32, device=DEVICE),))
both = nn.ModuleList([model, head])
optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
losses = []
for _ in range(6):
    x = torch.randn(16, 32, device=DEVICE)
    y = torch.randint(4, (16,), device=DEVICE)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, both)
