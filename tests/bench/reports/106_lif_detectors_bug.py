"""Look-up tables addressed by spiking detectors, trained with a straight-through estimator."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LIFDetectorsMHL(nn.Module):
    """Each head reads nap hyperplane bits and returns the row of its table which they address."""

    def __init__(self, inputs=8, outputs=6, heads=12, nap=4):
        super().__init__()
        self.nap = nap
        self.detectors = nn.Parameter(torch.randn(heads, nap, inputs) / inputs**0.5)
        self.table = nn.Parameter(0.1 * torch.randn(heads, 2**nap, outputs))
        codes = torch.arange(2**nap)
        self.register_buffer("code_bits", ((codes[:, None] >> torch.arange(nap)) & 1).bool())

    def forward(self, x):
        membrane = torch.einsum("bi,hki->bhk", x, self.detectors)
        b_soft = torch.sigmoid(2 * membrane)
        b_hard = (membrane > 0).float()
        st_bit = b_soft + (b_hard - b_soft).detach()
        terms = torch.where(self.code_bits, st_bit[:, :, None, :], 1 - st_bit[:, :, None, :])
        prow = terms.prod(-1)
        y = torch.einsum("bhc,hco->bo", prow, self.table)
        return y


class Net(nn.Module):
    def __init__(self, inputs=8, hidden=16, classes=3):
        super().__init__()
        self.inp = nn.Linear(inputs, hidden)
        self.lut = LIFDetectorsMHL(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(h + self.lut(h))


x = torch.randn(384, 8)
y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] > 0.3).long()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        accuracy = (logits.argmax(1) == y).float().mean().item()
        print(f"step {step}: loss {loss.item():.4f}, accuracy {accuracy:.3f}")
grad = model.lut.table.grad.abs().sum(-1)
print(f"rows of the tables with a gradient: {(grad > 0).float().mean().item():.3f}")
