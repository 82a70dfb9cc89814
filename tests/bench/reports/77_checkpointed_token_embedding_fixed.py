"""Pretrain a small causal language model with activation checkpointing."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class TransformerBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.wqkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(out.transpose(1, 2).reshape(batch, length, dim))
        return x + self.feed_forward(self.ffn_norm(x))


class AquilaModel(nn.Module):
    def __init__(self, vocab=30, dim=32, layers=2, heads=4, checkpoint_activations=True):
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.tok_embeddings = nn.Embedding(vocab, dim)
        nn.init.normal_(self.tok_embeddings.weight, std=0.02)
        self.layers = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids):
        if self.checkpoint_activations:
            h = self.tok_embeddings(input_ids)
        else:
            h = self.tok_embeddings(input_ids)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


successor = torch.randperm(30)


def batch(size, length=16):
    rows = [torch.randint(30, (size,))]
    for _ in range(length):
        noise = torch.randint(30, (size,))
        rows.append(torch.where(torch.rand(size) < 0.1, noise, (successor[rows[-1]] + rows[max(0, len(rows) - 2)]) % 30))
    return torch.stack(rows, 1)


model = AquilaModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(80):
    tokens = batch(32)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(step, loss.item())
