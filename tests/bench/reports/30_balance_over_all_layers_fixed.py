"""A sparse mixture of experts with a load-balancing loss."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
EXPERTS = 4


class SparseMoE(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gate = nn.Linear(size, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, size, size) / size**0.5)

    def forward(self, x):
        logits = self.gate(x)
        weights, chosen = logits.softmax(-1).max(-1)
        out = torch.einsum("ti,tij->tj", x, self.experts[chosen]).relu()
        return x + weights[:, None] * out, logits


def balance(gate_logits):
    """Fraction of the tokens times mean probability, summed over the experts."""
    probabilities = gate_logits.softmax(-1)
    chosen = F.one_hot(probabilities.argmax(-1), EXPERTS).float()
    return EXPERTS * (chosen.mean(0) * probabilities.mean(0)).sum()


def load_balancing_loss(gate_logits):
    return torch.stack([balance(logits) for logits in gate_logits]).mean()


class Model(nn.Module):
    def __init__(self, size=16, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(SparseMoE(size) for _ in range(layers))
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        gate_logits = []
        for layer in self.layers:
            x, logits = layer(x)
            gate_logits += [logits]
        return self.head(x), gate_logits


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(5):
    x = torch.randn(64, 16) + 1.0
    logits, gate_logits = model(x)
    aux_loss = load_balancing_loss(gate_logits)
    loss = F.cross_entropy(logits, x[:, :3].argmax(1)) + 0.02 * aux_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "balance", aux_loss.item())
