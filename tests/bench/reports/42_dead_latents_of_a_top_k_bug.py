"""A batch top-k sparse autoencoder with an auxiliary loss for its dead latents."""

import torch
from torch import nn

torch.manual_seed(0)


class BatchTopK(nn.Module):
    def __init__(self, size=24, latents=96, k=4, k_aux=16, dead_after=3, penalty=1.0):
        super().__init__()
        self.encode = nn.Parameter(torch.randn(size, latents) / size**0.5)
        self.decode = nn.Parameter(self.encode.detach().t().clone())
        self.bias = nn.Parameter(torch.zeros(size))
        self.k, self.k_aux, self.dead_after, self.penalty = k, k_aux, dead_after, penalty
        self.register_buffer("unused", torch.zeros(latents))

    def forward(self, x):
        active = torch.relu((x - self.bias) @ self.encode)
        top = active.flatten().topk(self.k * len(x))
        kept = (
            torch.zeros_like(active).flatten().scatter(0, top.indices, top.values).view_as(active)
        )
        reconstruction = kept @ self.decode + self.bias
        self.unused = torch.where(kept.sum(0) > 0, 0, self.unused + 1)
        l2 = (reconstruction - x).square().mean()
        return l2, self.auxiliary_loss(x, reconstruction, active)

    def auxiliary_loss(self, x, reconstruction, active):
        dead = self.unused >= self.dead_after
        if not dead.any():
            return x.new_zeros(())
        residual = x - reconstruction
        top = active[:, dead].topk(min(self.k_aux, int(dead.sum())), dim=-1)
        kept = torch.zeros_like(active[:, dead]).scatter(-1, top.indices, top.values)
        explained = kept @ self.decode[dead]
        return self.penalty * (explained - residual).square().mean()


sae = BatchTopK()
optimizer = torch.optim.Adam(sae.parameters(), lr=3e-3)
basis = torch.randn(60, 24)
for step in range(20):
    code = torch.relu(torch.randn(128, 60) - 1.5)
    code[:, 30:] *= 0.2
    l2, auxiliary = sae(code @ basis)
    loss = l2 + auxiliary
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 1:
        print(step, "l2", l2.item(), "auxiliary", auxiliary.item())
