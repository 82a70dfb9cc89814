"""Train a text embedding with InfoNCE and a fixed number of hard negatives."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
HARD_NEGATIVES, TEMPERATURE = 4, 0.1


class Embedder(nn.Module):
    def __init__(self, vocab=80, dim=32):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.project = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, tokens):
        return F.normalize(self.project(self.embed(tokens)), dim=-1)


def parse_multi_negative_sentences(sentences, sizes):
    """Split into [anchor, positive, negatives ...] with the same number of negatives in each group."""
    groups = []
    for group in sentences.split(sizes):
        missing = HARD_NEGATIVES - (len(group) - 2)
        if missing > 0:
            sampled = torch.randint(len(group) - 2, (missing,))
            negatives = torch.cat([group[2:], group[1 + sampled]])
        else:
            negatives = group[2 : 2 + HARD_NEGATIVES]
        groups.append(torch.cat([group[:2], negatives]))
    return torch.stack(groups)


def infonce_loss(sentences, sizes):
    groups = parse_multi_negative_sentences(sentences, sizes)
    anchors, candidates = groups[:, 0], groups[:, 1:]
    similarity = (anchors[:, None] * candidates).sum(-1) / TEMPERATURE
    return F.cross_entropy(similarity, torch.zeros(len(groups), dtype=torch.long)), similarity


def sentence(topic):
    return torch.randint(8, (6,)) + 8 * topic


def batch(count):
    rows, sizes = [], []
    for _ in range(count):
        topic = int(torch.randint(10, ()))
        negatives = [(topic + int(torch.randint(1, 10, ()))) % 10 for _ in range(int(torch.randint(1, 3, ())))]
        rows += [sentence(topic), sentence(topic), *map(sentence, negatives)]
        sizes.append(2 + len(negatives))
    return torch.stack(rows), sizes


model = Embedder()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(80):
    tokens, sizes = batch(16)
    loss, similarity = infonce_loss(model(tokens), sizes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(step, "loss", loss.item())
