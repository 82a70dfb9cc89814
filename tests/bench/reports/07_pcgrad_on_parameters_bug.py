"""Multi-task regression with projected conflicting gradients."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(26)


def pcgrad(grads):
    """Removes from each gradient what conflicts with the others."""
    projected = []
    for i, g in enumerate(grads):
        g = g.clone()
        for j, other in enumerate(grads):
            dot = (g * other).sum()
            if i != j and dot < 0:
                g -= dot / other.square().sum() * other
        projected.append(g)
    return projected


class MTL(nn.Module):
    def __init__(self, size=12):
        super().__init__()
        layers = [nn.Linear(size, size, bias=False) for _ in range(2)]
        self.shared = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(size, 1) for _ in range(2))

    def forward(self, x):
        h = self.shared(x)
        return [head(h).squeeze(-1) for head in self.heads]


model = MTL()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
shared = list(model.shared.parameters())
for step in range(5):
    x = torch.randn(32, 12)
    targets = [x[:, :4].sum(1), -2 * x[:, :3].sum(1)]
    losses = [F.mse_loss(out, y) for out, y in zip(model(x), targets, strict=False)]
    optimizer.zero_grad()
    sum(losses).backward()
    grads = [p.grad for p in shared]
    for p, g in zip(shared, pcgrad(grads), strict=False):
        p.grad = g
    optimizer.step()
    print(step, [loss.item() for loss in losses])
