"""Fit the parameters of a force field to energies and forces of conformers."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class ForceField(nn.Module):
    """Harmonic bonds along a chain and a repulsion of all other pairs."""

    def __init__(self, k, length, epsilon):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(k))
        self.length = nn.Parameter(torch.tensor(length))
        self.epsilon = nn.Parameter(torch.tensor(epsilon))

    def compute_energy(self, coords):
        bonds = (coords[:, 1:] - coords[:, :-1]).norm(dim=-1)
        i, j = torch.triu_indices(coords.shape[1], coords.shape[1], 2)
        distance = (coords[:, i] - coords[:, j]).norm(dim=-1)
        return (self.k / 2 * (bonds - self.length) ** 2).sum(1) + (self.epsilon / distance**2).sum(1)


def predict(force_field, entries):
    energy_pred, forces_pred = [], []
    for entry in entries:
        coords = entry["coords"].clone().requires_grad_(True)
        energy = force_field.compute_energy(coords)
        gradient = torch.autograd.grad(energy.sum(), coords, create_graph=True)[0]
        energy_pred.append(energy - energy.mean())
        forces_pred.append(-gradient)
    return torch.cat(energy_pred), torch.cat(forces_pred)


def conformers(count, atoms):
    chain = torch.arange(atoms)[:, None] * torch.tensor([1.3, 0.0, 0.0])
    return chain + 0.3 * torch.randn(count, atoms, 3)


truth = ForceField(k=4.0, length=1.2, epsilon=0.8)
entries = []
for atoms in (4, 4, 4):
    coords = conformers(16, atoms).requires_grad_(True)
    energy = truth.compute_energy(coords)
    forces = -torch.autograd.grad(energy.sum(), coords)[0]
    entries.append({"coords": coords.detach(), "energy": (energy - energy.mean()).detach(), "forces": forces})
energy_ref = torch.cat([entry["energy"] for entry in entries])
forces_ref = torch.cat([entry["forces"] for entry in entries])

force_field = ForceField(k=2.5, length=1.5, epsilon=0.3)
optimizer = torch.optim.Adam(force_field.parameters(), lr=0.05)
for epoch in range(150):
    energy_pred, forces_pred = predict(force_field, entries)
    loss_energy = ((energy_pred - energy_ref) ** 2).mean()
    loss_forces = ((forces_pred - forces_ref) ** 2).mean()
    loss = loss_energy + loss_forces
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 30 == 29:
        values = [round(p.item(), 2) for p in force_field.parameters()]
        print(epoch, "energy", loss_energy.item(), "forces", loss_forces.item(), values)
