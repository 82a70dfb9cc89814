"""Fit energies and forces with a linear model of real spherical harmonics."""

import torch
from torch import nn

torch.manual_seed(0)


def harmonics(xyz):
    x, y, z = xyz.unbind(-1)
    return torch.stack([x, y, z, x * y, y * z, 3 * z**2 - 1, x * z, x**2 - y**2], -1)


def harmonics_derivatives(xyz):
    """Return the derivatives of the eight functions, shape (n, 8, 3)."""
    x, y, z = xyz.unbind(-1)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    rows = [
        (one, zero, zero), (zero, one, zero), (zero, zero, one), (y, x, zero),
        (zero, z, y), (zero, zero, 6 * z), (z, zero, x), (2 * x, -2 * y, zero),
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


class Harmonics(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xyz, second):
        ctx.save_for_backward(xyz)
        ctx.second = second
        return harmonics(xyz)

    @staticmethod
    def backward(ctx, grad_output):
        (xyz,) = ctx.saved_tensors
        return HarmonicsBackward.apply(grad_output, xyz, ctx.second), None


class HarmonicsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad_output, xyz, second):
        derivatives = harmonics_derivatives(xyz)
        ctx.save_for_backward(grad_output, xyz, derivatives)
        ctx.second = second
        return torch.einsum("nk,nkd->nd", grad_output, derivatives)

    @staticmethod
    def backward(ctx, grad_2_output):
        grad_output, xyz, derivatives = ctx.saved_tensors
        gradgrad_wrt_grad_out = torch.einsum("nd,nkd->nk", grad_2_output, derivatives)
        gradgrad_wrt_xyz = None
        if ctx.second:
            with torch.enable_grad():
                leaf = xyz.detach().requires_grad_()
                first = torch.einsum("nk,nkd->nd", grad_output.detach(), harmonics_derivatives(leaf))
            gradgrad_wrt_xyz = torch.autograd.grad(first, leaf, grad_2_output)[0]
        return gradgrad_wrt_grad_out, gradgrad_wrt_xyz, None


class SphericalHarmonics(nn.Module):
    def __init__(self, backward_second_derivatives=False):
        super().__init__()
        self.second = backward_second_derivatives

    def forward(self, xyz):
        return Harmonics.apply(xyz, self.second)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.harmonics = SphericalHarmonics()
        self.energy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, xyz):
        energy = self.energy(self.harmonics(xyz)).squeeze(-1)
        forces = -torch.autograd.grad(energy.sum(), xyz, create_graph=True)[0]
        return energy, forces


def reference(xyz):
    energy = (xyz[:, 0] * xyz[:, 1]).sin() + xyz[:, 2] ** 2
    return energy.detach(), -torch.autograd.grad(energy.sum(), xyz)[0]


positions = torch.randn(64, 3, requires_grad=True)
energies, target_forces = reference(positions)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(200):
    energy, forces = model(positions)
    energy_loss = (energy - energies).pow(2).mean()
    force_loss = (forces - target_forces).pow(2).mean()
    loss = 0.1 * energy_loss + force_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        print(step, "energy", energy_loss.item(), "force", force_loss.item())
