"""Classify graphs with a layer that combines message passing and global attention."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class GPSConv(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.message = nn.Linear(channels, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))

    def forward(self, x, edge_index, batch=None):
        if batch is None:
            batch = x.new_zeros(len(x), dtype=torch.long)
        source, target = edge_index
        local = torch.zeros_like(x).index_add(0, target, self.message(x)[source])
        q, k, v = self.qkv(x).chunk(3, -1)
        same = batch[:, None] == batch[None, :]
        scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~same, float("-inf"))
        x = self.norm(x + local + scores.softmax(-1) @ v)
        return x + self.mlp(x)


class GPS(nn.Module):
    def __init__(self, channels=24, layers=2):
        super().__init__()
        self.encode = nn.Linear(3, channels)
        self.convs = nn.ModuleList(GPSConv(channels) for _ in range(layers))

    def forward(self, x, edge_index, batch=None):
        x = self.encode(x)
        for conv in self.convs:
            x = conv(x, edge_index, batch)
        return x


class GNNWrapper(nn.Module):
    def __init__(self, backbone, channels=24, classes=2):
        super().__init__()
        self.backbone = backbone
        self.readout = nn.Linear(channels, classes)

    def encode(self, data):
        return self.backbone(data.x, data.edge_index, data.batch)

    def forward(self, data):
        nodes = self.encode(data)
        pooled = nodes.new_zeros(data.num_graphs, nodes.shape[1]).index_add(0, data.batch, nodes)
        return self.readout(pooled / torch.bincount(data.batch)[:, None])


def graphs(count):
    xs, edges, batch, labels, start = [], [], [], [], 0
    for graph in range(count):
        size = int(torch.randint(5, 9, ()))
        x = torch.randn(size, 3)
        ring = torch.arange(size)
        edges.append(torch.stack([ring, ring.roll(1)]) + start)
        xs.append(x)
        batch.append(torch.full((size,), graph))
        # is the node with the largest key a positive one?
        labels.append(int(x[x[:, 0].argmax(), 1] > 0))
        start += size
    return SimpleNamespace(
        x=torch.cat(xs), edge_index=torch.cat(edges, 1), batch=torch.cat(batch), num_graphs=count,
        y=torch.tensor(labels),
    )


model = GNNWrapper(GPS())
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
train = [graphs(32) for _ in range(12)]
for epoch in range(12):
    total = 0.0
    for data in train:
        loss = F.cross_entropy(model(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / len(train)
    if epoch % 3 == 2:
        print(epoch, "loss", total)
