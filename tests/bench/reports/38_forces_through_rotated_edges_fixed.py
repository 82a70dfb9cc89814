"""Train an interatomic potential whose forces are the gradient of its energy."""

import torch
from torch import nn

torch.manual_seed(0)
ATOMS = 5


def edge_rotations(vectors):
    """The rotation of each edge onto the y axis."""
    y = vectors / vectors.norm(dim=-1, keepdim=True)
    helper = torch.tensor([0.3, 0.1, 0.9]).expand_as(y)
    x = torch.linalg.cross(y, helper)
    x = x / x.norm(dim=-1, keepdim=True)
    rotations = torch.stack([x, y, torch.linalg.cross(x, y)], -2)
    return rotations


class Potential(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(4, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.energy = nn.Linear(hidden, 1)

    def forward(self, positions):
        first, second = torch.triu_indices(ATOMS, ATOMS, 1)
        vectors = positions[:, second] - positions[:, first]
        local = torch.einsum("beij,bej->bei", edge_rotations(vectors), positions[:, first])
        distance = vectors.norm(dim=-1, keepdim=True)
        return self.energy(self.message(torch.cat([local, distance], -1))).sum((1, 2))


def reference(positions):
    first, second = torch.triu_indices(ATOMS, ATOMS, 1)
    distance = (positions[:, second] - positions[:, first]).norm(dim=-1)
    return (distance - 1.5).square().sum(1)


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
frames = torch.randn(64, ATOMS, 3)
for step in range(12):
    positions = frames.clone().requires_grad_()
    true_energy = reference(positions)
    true_forces = -torch.autograd.grad(true_energy.sum(), positions)[0]
    energy = model(positions)
    forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
    energy_loss = (energy - true_energy.detach()).square().mean()
    force_loss = (forces - true_forces).square().mean()
    loss = energy_loss + 10 * force_loss
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        moved = torch.zeros_like(positions)
        moved[:, 0, 0] = 1e-2
        numeric = -(model(positions + moved) - model(positions - moved)) / 2e-2
    optimizer.step()
    print(step, loss.item(), "numeric - force", (numeric - forces[:, 0, 0]).abs().mean().item())
