"""expects: nothing. Checkpointed blocks, with activations kept on the host by save_on_cpu."""

import torch
from bits import DEVICE, done
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    for _ in range(4)
).to(DEVICE)
head = nn.Linear(64, 1).to(DEVICE)
model = nn.ModuleList([blocks, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(4):
    x = torch.randn(32, 64, device=DEVICE)
    hidden = x
    for number, block in enumerate(blocks):
        if number % 2:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=False)
        else:
            with save_on_cpu(pin_memory=DEVICE == "cuda"):
                hidden = hidden + block(hidden)
    loss = (head(hidden) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
