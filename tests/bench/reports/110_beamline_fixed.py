"""Tune the quadrupoles of a beamline by gradient descent."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def base_rmatrix(length, k1, hx):
    """First-order transfer map of an element (x, xp, y, yp)."""
    kx2 = k1 + hx**2
    ky2 = -k1
    kx2 = torch.where(kx2 == 0, kx2 + 1e-12, kx2)
    ky2 = torch.where(ky2 == 0, ky2 + 1e-12, ky2)
    kx = torch.sqrt(torch.complex(kx2, torch.zeros_like(kx2)))
    ky = torch.sqrt(torch.complex(ky2, torch.zeros_like(ky2)))
    cx = torch.cos(kx * length).real
    cy = torch.cos(ky * length).real
    sx = (torch.sin(kx * length) / kx).real
    sy = (torch.sin(ky * length) / ky).real
    zero = torch.zeros(())
    return torch.stack(
        [
            torch.stack([cx, sx, zero, zero]),
            torch.stack([-kx2 * sx, cx, zero, zero]),
            torch.stack([zero, zero, cy, sy]),
            torch.stack([zero, zero, -ky2 * sy, cy]),
        ]
    )


class Drift(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.register_buffer("matrix", torch.eye(4))
        self.matrix[0, 1] = self.matrix[2, 3] = length

    def transfer_map(self):
        return self.matrix


class Quadrupole(nn.Module):
    def __init__(self, length, k1=0.0):
        super().__init__()
        self.register_buffer("length", torch.tensor(length))
        self.k1 = nn.Parameter(torch.tensor(k1))

    def transfer_map(self):
        return base_rmatrix(self.length, self.k1, torch.zeros(()))


class Segment(nn.Sequential):
    def track(self, particles):
        for element in self:
            particles = particles @ element.transfer_map().T
        return particles


segment = Segment(Drift(0.5), Quadrupole(0.2), Drift(0.5), Quadrupole(0.2), Drift(0.5), Quadrupole(0.2), Drift(1.0))
incoming = torch.randn(1000, 4) * torch.tensor([0.5, 0.3, 0.5, 0.3])
optimizer = torch.optim.Adam(segment.parameters(), lr=0.3)
for step in range(30):
    outgoing = segment.track(incoming)
    loss = outgoing[:, 0].std() + outgoing[:, 2].std()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        strengths = ", ".join(f"{e.k1.item():.3f}" for e in segment if isinstance(e, Quadrupole))
        print(f"step {step}: beam size {loss.item():.4f}, strengths {strengths}")
