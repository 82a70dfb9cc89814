"""A character GPT from scratch."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, CONTEXT, D = 85, 24, 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, D)
        self.positions = nn.Embedding(CONTEXT, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)
        self.apply(self._init_weights)
        self.head.weight = self.tokens.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
print(f"expected at first: about ln({VOCAB}) = {math.log(VOCAB):.2f}")
for step in range(5):
    ids = torch.randint(VOCAB, (8, CONTEXT + 1))
    loss = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
