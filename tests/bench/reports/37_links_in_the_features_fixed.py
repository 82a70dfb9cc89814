"""Predict the links of a temporal graph from the history of each node."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
NODES, EVENTS, BATCH = 40, 704, 64


class LinkPredictor(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(NODES, size), nn.ReLU(), nn.Linear(size, size))
        self.decode = nn.Bilinear(size, size, 1)

    def forward(self, features, source, target):
        hidden = self.encode(features)
        return self.decode(hidden[source], hidden[target]).squeeze(-1)


def adjacency_features(edges):
    adjacency = torch.zeros(NODES, NODES)
    adjacency[edges[:, 0], edges[:, 1]] = 1.0
    adjacency[edges[:, 1], edges[:, 0]] = 1.0
    degree = adjacency.sum(1).clamp(min=1)
    return torch.eye(NODES) @ (adjacency / degree[:, None])


group = torch.randint(4, (NODES,))
source = torch.randint(NODES, (EVENTS,))
target = torch.stack(
    [
        torch.randint(NODES, (1,))[0]
        if torch.rand(1) < 0.5
        else (group == group[s]).nonzero()[
            torch.randint(int((group == group[s]).sum()), (1,))[0], 0
        ]
        for s in source
    ]
)
events = torch.stack([source, target], 1)
model = LinkPredictor()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
for epoch in range(8):
    losses = []
    for start in range(BATCH, EVENTS - BATCH, BATCH):
        positive = events[start : start + BATCH]
        negative = torch.randint(NODES, (BATCH,))
        features = adjacency_features(events[:start])
        scores = torch.cat(
            [
                model(features, positive[:, 0], positive[:, 1]),
                model(features, positive[:, 0], negative),
            ]
        )
        truth = torch.cat([torch.ones(BATCH), torch.zeros(BATCH)])
        loss = F.binary_cross_entropy_with_logits(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        features, coming = adjacency_features(events[:-BATCH]), events[-BATCH:]
        scores = model(features, coming[:, 0], coming[:, 1])
        missed = F.binary_cross_entropy_with_logits(scores, torch.ones(BATCH)).item()
    print(epoch, sum(losses) / len(losses), "loss of coming links", missed)
