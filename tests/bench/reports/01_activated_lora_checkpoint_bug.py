"""Fine-tune an adapter that acts only from the invocation tokens on."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class ALoraLinear(nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.lora_A = nn.Linear(size, rank, bias=False)
        self.lora_B = nn.Linear(rank, size, bias=False)
        self.offsets = None

    def forward(self, x):
        out = self.base(x)
        if self.offsets is not None:
            active = torch.arange(x.shape[1]) >= self.offsets[:, None]
            out = out + self.lora_B(self.lora_A(x)) * active[..., None]
        return out.tanh()


class Model(nn.Module):
    def __init__(self, vocab=30, size=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, size).requires_grad_(False)
        self.layers = nn.ModuleList(ALoraLinear(size) for _ in range(2))
        self.head = nn.Linear(size, vocab).requires_grad_(False)

    @contextmanager
    def adapter_offsets(self, offsets):
        for layer in self.layers:
            layer.offsets = offsets
        yield
        for layer in self.layers:
            layer.offsets = None

    def forward(self, ids, offsets):
        h = self.embed(ids).requires_grad_()
        with self.adapter_offsets(offsets):
            for layer in self.layers:
                h = checkpoint(layer, h, use_reentrant=True)
        return self.head(h)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
for step in range(4):
    ids = torch.randint(30, (4, 10))
    loss = F.cross_entropy(model(ids, torch.tensor([2, 3, 4, 5]))[:, :-1].mT, ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
