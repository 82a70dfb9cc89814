"""A decoder whose layers attend in turn to all and to a sliding window."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class DecoderLayer(nn.Module):
    def __init__(self, size, heads=2, window=None):
        super().__init__()
        self.heads, self.window = heads, window
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x, attention_mask):
        if self.window is not None:
            far = torch.ones_like(attention_mask, dtype=torch.bool).tril(diagonal=-self.window)
            attention_mask = attention_mask.masked_fill(far, torch.finfo(x.dtype).min)
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = qkv[0] @ qkv[1].mT / qkv.shape[-1] ** 0.5 + attention_mask
        mixed = (scores.softmax(-1) @ qkv[2]).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, vocab=40, size=24, length=16, window=6):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, size), nn.Embedding(length, size)
        self.layers = nn.ModuleList(
            DecoderLayer(size, window=window if i % 2 == 0 else None) for i in range(2)
        )
        self.head = nn.Linear(size, vocab)

    def forward(self, ids):
        length = ids.shape[1]
        low = torch.full((length, length), torch.finfo(torch.float32).min)
        mask = low.triu(1)[None, None]
        x = self.tokens(ids) + self.positions.weight[:length]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(5):
    ids = torch.randint(40, (16, 17))
    loss = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
