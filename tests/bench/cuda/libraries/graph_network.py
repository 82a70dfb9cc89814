"""expects: nothing. Two GCN layers of PyTorch Geometric on one graph, loss on a mask."""

import torch
from bits import DEVICE, done
from torch import nn
from torch_geometric.nn import GCNConv

torch.use_deterministic_algorithms(True, warn_only=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(16, 32), GCNConv(32, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edges).relu(), edges)


model = Net().to(DEVICE)
x, edges = torch.randn(200, 16, device=DEVICE), torch.randint(200, (2, 800), device=DEVICE)
labels = torch.randint(4, (200,), device=DEVICE)
mask = torch.rand(200, device=DEVICE) < 0.5
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x, edges)[mask], labels[mask])
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
