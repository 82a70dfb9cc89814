"""Classify short texts with one attention query for each label."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LabelAttention(nn.Module):
    """Attend from each label to the tokens of a text."""

    def __init__(self, dim, labels, heads=4):
        super().__init__()
        self.heads = heads
        self.label_embeds = nn.Embedding(labels, dim)
        self.c_q, self.c_k, self.c_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.c_proj = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(len(x), -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)

    def forward(self, token_embeddings, attention_mask):
        batch = len(token_embeddings)
        labels = self.label_embeds.weight.expand(batch, -1, -1)
        q, k, v = self.split(self.c_q(labels)), self.split(self.c_k(token_embeddings)), self.split(self.c_v(token_embeddings))
        attn_mask = attention_mask[:, None, None, :] == 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.c_proj(out.transpose(1, 2).reshape(batch, -1, out.shape[-1] * self.heads))


class TextClassifier(nn.Module):
    def __init__(self, vocab=60, dim=32, labels=5, length=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(length, dim)
        self.attention = LabelAttention(dim, labels)
        self.head = nn.Linear(dim, 1)

    def forward(self, tokens, attention_mask):
        hidden = self.embed(tokens) + self.position.weight
        return self.head(self.attention(hidden, attention_mask)).squeeze(-1)


def batch(count, length=16):
    labels = torch.randint(5, (count,))
    tokens = torch.randint(10, 60, (count, length))
    sizes = torch.randint(5, 13, (count,))
    place = (torch.rand(count) * sizes).long()
    tokens[torch.arange(count), place] = 2 + labels
    attention_mask = (torch.arange(length) < sizes[:, None]).long()
    return tokens * attention_mask, attention_mask, labels


model = TextClassifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
for step in range(120):
    tokens, attention_mask, labels = batch(64)
    loss = F.cross_entropy(model(tokens, attention_mask), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        print(step, "loss", loss.item())
