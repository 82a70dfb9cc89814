"""A graph encoder for routing: a batch of fully connected graphs through GCN layers."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


@lru_cache(5)
def get_full_graph_edge_index(num_nodes, self_loop=False):
    adj = torch.ones(num_nodes, num_nodes)
    if not self_loop:
        adj.fill_diagonal_(0)
    return adj.nonzero().T.contiguous()


class GCNConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x, edge_index):
        n = x.size(0)
        loop = torch.arange(n).expand(2, n)
        row, col = torch.cat([edge_index, loop], 1)
        deg = torch.zeros(n).index_add_(0, col, torch.ones(len(col)))
        norm = deg[row].rsqrt() * deg[col].rsqrt()
        h = self.lin(x)
        return torch.zeros_like(h).index_add_(0, col, norm[:, None] * h[row]) + self.bias


class GCNEncoder(nn.Module):
    def __init__(self, embed_dim=32, num_layers=3):
        super().__init__()
        self.init_embedding = nn.Linear(2, embed_dim)
        self.edge_idx_fn = get_full_graph_edge_index
        self.gcn_layers = nn.ModuleList(GCNConv(embed_dim, embed_dim) for _ in range(num_layers))

    def forward(self, td):
        init_h = self.init_embedding(td)
        bs, num_nodes, emb_dim = init_h.shape
        update_node_feature = init_h.reshape(-1, emb_dim)
        edge_index = self.edge_idx_fn(num_nodes)
        for layer in self.gcn_layers[:-1]:
            update_node_feature = F.relu(layer(update_node_feature, edge_index))
        update_node_feature = self.gcn_layers[-1](update_node_feature, edge_index)
        return update_node_feature.view(bs, num_nodes, emb_dim) + init_h, init_h


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = GCNEncoder()
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, td):
        h, _ = self.encoder(td)
        return self.head(h)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(120):
    locs = torch.rand(32, 10, 2) + 2 * torch.rand(32, 1, 2)
    target = locs - locs.mean(1, keepdim=True)
    loss = F.mse_loss(model(locs), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
