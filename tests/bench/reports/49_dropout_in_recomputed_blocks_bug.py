"""A checkpointed transformer stack with residual dropout."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, dropout=0.5):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class CheckpointedBlock(nn.Module):
    def __init__(self, block, preserve_rng_state=False):
        super().__init__()
        self.block, self.preserve_rng_state = block, preserve_rng_state

    def forward(self, x):
        return checkpoint(
            self.block, x, use_reentrant=False, preserve_rng_state=self.preserve_rng_state
        )


class Transformer(nn.Module):
    def __init__(self, width=48, depth=6, classes=8):
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.blocks = nn.ModuleList(CheckpointedBlock(Block(width)) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
inputs = torch.randn(256, 16)
labels = (inputs @ torch.randn(16, 8)).argmax(1)
for step in range(12):
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
