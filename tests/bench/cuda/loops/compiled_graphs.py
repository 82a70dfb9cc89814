"""expects: nothing. A transformer layer compiled with CUDA graphs (mode="reduce-overhead")."""

import torch
from bits import DEVICE, done
from torch import nn

layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
model = nn.Sequential(nn.Linear(16, 64), layer, nn.Linear(64, 1)).to(DEVICE)
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for _ in range(5):
    x = torch.randn(8, 32, 16, device=DEVICE)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(compiled(x), x.sum(-1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(loss.detach().clone())
done(losses, model)
