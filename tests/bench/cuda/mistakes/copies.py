"""expects: round-trip. The hidden state goes to the CPU in the middle of the forward, and back."""

import torch
from bits import DEVICE, done
from torch import nn

first, second = nn.Linear(256, 512).to(DEVICE), nn.Linear(512, 10).to(DEVICE)
model = nn.ModuleList([first, second])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _ in range(4):
    hidden = first(torch.randn(512, 256, device=DEVICE)).cpu().relu().to(DEVICE)
    loss = nn.functional.cross_entropy(second(hidden), torch.randint(10, (512,), device=DEVICE))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
