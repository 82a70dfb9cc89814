"""expects: nothing. Accelerate with accumulation, bf16 and clipping."""

import torch
from accelerate import Accelerator
from bits import DEVICE, done
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

mixed = "bf16" if DEVICE == "cuda" else "no"
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=mixed)
model = nn.Sequential(nn.Embedding(100, 32), nn.Flatten(), nn.Linear(32 * 8, 100))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randint(100, (64, 8)), torch.randint(100, (64,)))
prepared, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=8, shuffle=True)
)
losses = []
for tokens, following in loader:
    with accelerator.accumulate(prepared):
        loss = nn.functional.cross_entropy(prepared(tokens), following)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
done(losses, model)
