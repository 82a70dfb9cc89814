"""Fine-tune adapters and the head of a checkpointed encoder with a frozen embedding."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class LoraBlock(nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        self.norm = nn.LayerNorm(size).requires_grad_(False)
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.lora_a = nn.Linear(size, rank, bias=False)
        self.lora_b = nn.Linear(rank, size, bias=False)

    def forward(self, hidden):
        x = self.norm(hidden)
        return hidden + F.gelu(self.base(x) + self.lora_b(self.lora_a(x)))


class Encoder(nn.Module):
    def __init__(self, vocab=50, size=32, layers=3, classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, size).requires_grad_(False)
        self.blocks = nn.ModuleList(LoraBlock(size) for _ in range(layers))
        self.head = nn.Linear(size, classes)

    def forward(self, ids):
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        return self.head(hidden.mean(1))


model = Encoder()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-2)
ids = torch.randint(50, (64, 12))
labels = (ids > 25).sum(1).clamp(4, 6) - 4
for step in range(8):
    loss = F.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
