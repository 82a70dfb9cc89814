"""Regression on small molecular graphs which are batched into one large graph."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)


class GraphData:
    def __init__(self, node_features, edge_index, label):
        self.node_features = node_features
        self.edge_index = edge_index
        self.label = label
        self.num_nodes = len(node_features)


class BatchGraphData:
    def __init__(self, graph_list):
        num_nodes_list = [graph.num_nodes for graph in graph_list]
        self.node_features = torch.from_numpy(np.vstack([graph.node_features for graph in graph_list])).float()
        edge_index = [
            graph.edge_index + prev_num_node
            for prev_num_node, graph in zip([0] + num_nodes_list[:-1], graph_list)
        ]
        self.edge_index = torch.from_numpy(np.hstack(edge_index))
        graph_index = []
        for i, num_nodes in enumerate(num_nodes_list):
            graph_index.extend([i] * num_nodes)
        self.graph_index = torch.tensor(graph_index)
        self.labels = torch.tensor([graph.label for graph in graph_list]).float()


def random_graph():
    num_nodes = int(rng.integers(3, 8))
    node_features = rng.normal(size=(num_nodes, 4))
    edges = [(i, int(rng.integers(0, i))) for i in range(1, num_nodes)]
    edge_index = np.array(edges + [(j, i) for i, j in edges]).T
    label = (node_features[edge_index[0], 0] * node_features[edge_index[1], 1]).sum()
    return GraphData(node_features, edge_index, label)


class MessagePassing(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * size, 32), nn.ReLU(), nn.Linear(32, size))
        self.update = nn.Linear(2 * size, size)

    def forward(self, x, edge_index):
        source, target = edge_index
        messages = self.message(torch.cat([x[source], x[target]], dim=1))
        received = torch.zeros_like(x).index_add(0, target, messages)
        return x + self.update(torch.cat([x, received], dim=1))


class GNN(nn.Module):
    def __init__(self, features=4, size=24):
        super().__init__()
        self.encoder = nn.Linear(features, size)
        self.conv = MessagePassing(size)
        self.readout = nn.Linear(size, 1)

    def forward(self, batch):
        h = self.conv(self.encoder(batch.node_features), batch.edge_index)
        nodes = self.readout(h).squeeze(-1)
        return torch.zeros_like(batch.labels).index_add(0, batch.graph_index, nodes)


graphs = [random_graph() for _ in range(192)]
model = GNN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(30):
    total = 0.0
    order = rng.permutation(len(graphs))
    for i in range(0, len(graphs), 32):
        batch = BatchGraphData([graphs[j] for j in order[i : i + 32]])
        loss = nn.functional.mse_loss(model(batch), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 5 == 0 or epoch == 29:
        print(f"epoch {epoch}: loss {total / 6:.4f}")
