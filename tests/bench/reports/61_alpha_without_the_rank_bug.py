"""Fine-tune a small classifier with LoRA layers."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(123)


class LoRALayer(nn.Module):
    def __init__(self, in_dim, out_dim, rank, alpha):
        super().__init__()
        self.A = nn.Parameter(torch.empty(in_dim, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B = nn.Parameter(torch.zeros(rank, out_dim))
        self.alpha = alpha
        self.rank = rank

    def forward(self, x):
        x = self.alpha * (x @ self.A @ self.B)
        return x


class LinearWithLoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear
        self.lora = LoRALayer(linear.in_features, linear.out_features, rank, alpha)

    def forward(self, x):
        return self.linear(x) + self.lora(x)


def replace_linear_with_lora(model, rank, alpha):
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            setattr(model, name, LinearWithLoRA(module, rank, alpha))
        else:
            replace_linear_with_lora(module, rank, alpha)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, vocab=60, size=48, classes=2):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, size)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(3)))
        self.out_head = nn.Linear(size, classes)

    def forward(self, ids):
        return self.out_head(self.blocks(self.tok_emb(ids)).mean(1))


ids = torch.randint(60, (512, 12))
labels = ((ids % 7).sum(1) > 36).long()
model = Classifier()
for param in model.parameters():
    param.requires_grad = False
replace_linear_with_lora(model, rank=16, alpha=16)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=8e-3, weight_decay=0.1)
for epoch in range(5):
    for i in range(0, 512, 32):
        loss = F.cross_entropy(model(ids[i : i + 32]), labels[i : i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(epoch, "loss", F.cross_entropy(model(ids), labels).item())
