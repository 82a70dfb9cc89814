"""Transformer: two blocks of attention and MLP, on 2 sequences of 10 tokens."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attend(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), value)
        return self.out(mixed.reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, tokens=50, width=32, heads=4):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def build(devices):
    device = devices[0]
    model = Transformer().to(device)
    tokens = torch.randint(0, 50, (2, 11))

    def loss():
        here = tokens.to(device)
        scores = model(here[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), here[:, 1:].flatten())

    return model, loss


# mypy: ignore-errors
