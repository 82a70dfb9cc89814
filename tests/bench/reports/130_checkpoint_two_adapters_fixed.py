"""One backbone, two modalities, a LoRA adapter for each, and checkpointed blocks."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as cp

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, size, names, r=4):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.lora_A = nn.ModuleDict({n: nn.Linear(size, r, bias=False) for n in names})
        self.lora_B = nn.ModuleDict({n: nn.Linear(r, size, bias=False) for n in names})
        for layer in self.lora_B.values():
            nn.init.normal_(layer.weight, std=0.02)
        self.active = []

    def forward(self, x):
        out = self.base(x)
        for name in self.active:
            out = out + self.lora_B[name](self.lora_A[name](x))
        return out


class Backbone(nn.Module):
    def __init__(self, size, names):
        super().__init__()
        self.stem = nn.Linear(8, size)
        self.blocks = nn.ModuleList(
            nn.Sequential(LoraLinear(size, names), nn.GELU(), LoraLinear(size, names))
            for _ in range(2)
        )

    def set_adapter(self, names):
        for module in self.modules():
            if isinstance(module, LoraLinear):
                module.active = names
        for key, p in self.named_parameters():
            if key.endswith("weight") and "pretrain" in key:
                p.requires_grad_(False)

    def forward(self, x, adapters):
        x = self.stem(x)
        for block in self.blocks:
            def run(x, block=block):
                self.set_adapter(adapters)
                return block(x)
            x = x + cp.checkpoint(run, x, use_reentrant=True)
        return x


names = ["optical_pretrain", "optical_ft", "radar_pretrain", "radar_ft"]
backbone = Backbone(24, names)
head = nn.Linear(48, 3)
backbone.set_adapter(names)
params = [p for p in [*backbone.parameters(), *head.parameters()] if p.requires_grad]
optimizer = torch.optim.Adam(params, lr=5e-3)
data = {"optical": torch.randn(64, 8), "radar": torch.randn(64, 8)}
target = (data["optical"][:, :3] * data["radar"][:, :3] + data["optical"][:, 3:6]).argmax(1)
for step in range(40):
    features = []
    for name, x in data.items():
        adapters = [name + "_pretrain", name + "_ft"]
        backbone.set_adapter(adapters)
        features.append(backbone(x, adapters))
    loss = F.cross_entropy(head(torch.cat(features, 1)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
