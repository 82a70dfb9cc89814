"""Node classification with graph convolutions without normalization."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def add_remaining_self_loops(edge_index, num_nodes):
    loop_index = torch.arange(num_nodes).repeat(2, 1)
    return torch.cat([edge_index[:, edge_index[0] != edge_index[1]], loop_index], dim=1)


def gcn_norm(edge_index, num_nodes, add_self_loops=True):
    if add_self_loops:
        edge_index = add_remaining_self_loops(edge_index, num_nodes)
    row, col = edge_index
    deg = torch.zeros(num_nodes).index_add(0, col, torch.ones(col.shape[0]))
    deg_inv_sqrt = deg.pow(-0.5)
    deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
    return edge_index, deg_inv_sqrt[row] * deg_inv_sqrt[col]


class GCNConv(nn.Module):
    def __init__(self, in_channels, out_channels, add_self_loops=True, normalize=True):
        super().__init__()
        self.add_self_loops = add_self_loops
        self.normalize = normalize
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x, edge_index):
        edge_weight = None
        if self.normalize:
            edge_index, edge_weight = gcn_norm(edge_index, x.size(0), self.add_self_loops)
        x = self.lin(x)
        return self.propagate(edge_index, x, edge_weight) + self.bias

    def propagate(self, edge_index, x, edge_weight):
        x_j = x[edge_index[0]]
        if edge_weight is not None:
            x_j = edge_weight.view(-1, 1) * x_j
        return torch.zeros_like(x).index_add(0, edge_index[1], x_j)


class GCN(nn.Module):
    def __init__(self, in_channels=6, hidden_channels=32, out_channels=3):
        super().__init__()
        self.conv = GCNConv(in_channels, hidden_channels, normalize=False)
        self.classifier = nn.Linear(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        h = F.relu(self.conv(x, edge_index))
        return self.classifier(h)


num_nodes = 200
users, items = torch.arange(0, 100), torch.arange(100, 200)
pairs = torch.stack([users.repeat(2), items[torch.randint(0, 100, (200,))]])
edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
x = torch.randn(num_nodes, 6)
neighbours = torch.zeros(num_nodes, 6).index_add(0, edge_index[1], x[edge_index[0]])
y = (2 * x[:, :3] + 0.3 * neighbours[:, :3]).argmax(1)

model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
for epoch in range(30):
    out = model(x, edge_index)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 5 == 0 or epoch == 29:
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {(out.argmax(1) == y).float().mean().item():.3f}")
