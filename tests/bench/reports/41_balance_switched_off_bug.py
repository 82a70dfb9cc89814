"""Fine-tune a mixture of low-rank experts with a balance loss of the router."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraExperts(nn.Module):
    def __init__(self, size=24, experts=6, rank=4, top=1):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.router = nn.Linear(size, experts)
        self.a = nn.Parameter(torch.randn(experts, size, rank) / size**0.5)
        self.b = nn.Parameter(torch.randn(experts, rank, size) * 0.1)
        self.top = top
        nn.init.constant_(self.router.bias[:1].data, 2.0)

    def forward(self, x):
        logits = self.router(x)
        weights, chosen = logits.softmax(-1).topk(self.top, -1)
        gates = torch.zeros_like(logits).scatter(-1, chosen, weights)
        update = torch.einsum("bi,eir,ero,be->bo", x, self.a, self.b, gates)
        return self.base(x) + update, logits


def load_balancing_loss(router_logits):
    weights = router_logits.softmax(-1)
    experts = weights.shape[-1]
    share = F.one_hot(weights.argmax(-1), experts).float().mean(0)
    return experts * (share * weights.mean(0)).sum()


class Model(nn.Module):
    def __init__(self, layers=3, classes=6, obalance=False, aux_coefficient=1.0):
        super().__init__()
        self.layers = nn.ModuleList(LoraExperts() for _ in range(layers))
        self.head = nn.Linear(24, classes)
        self.obalance, self.aux_coefficient = obalance, aux_coefficient

    def forward(self, x, labels):
        aux_losses = []
        for layer in self.layers:
            update, router_logits = layer(x)
            x = F.gelu(update) + x
            aux_losses.append(load_balancing_loss(router_logits))
        loss = F.cross_entropy(self.head(x), labels)
        aux_loss = torch.stack(aux_losses).mean()
        if self.obalance:
            loss = loss + self.aux_coefficient * aux_loss
        return loss, aux_loss


model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x = torch.randn(256, 24)
labels = (x @ torch.randn(24, 6)).argmax(1)
for step in range(12):
    loss, aux_loss = model(x, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "balance", aux_loss.item())
