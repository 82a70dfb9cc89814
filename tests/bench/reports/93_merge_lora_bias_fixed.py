"""Train a LoRA adapter with a bias and merge it into the base weights."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Linear(nn.Module):
    def __init__(self, base_layer, r=4, lora_alpha=32, lora_bias=True):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=lora_bias)
        nn.init.zeros_(self.lora_B.weight)
        nn.init.zeros_(self.lora_B.bias)
        self.scaling = lora_alpha / r
        self.merged = False

    def get_delta_weight(self):
        return self.lora_B.weight @ self.lora_A.weight * self.scaling

    def merge(self):
        self.base_layer.weight.data += self.get_delta_weight()
        self.base_layer.bias.data += self.lora_B.bias * self.scaling
        self.merged = True

    def forward(self, x):
        result = self.base_layer(x)
        if not self.merged:
            result = result + self.lora_B(self.lora_A(x)) * self.scaling
        return result


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin0 = Linear(nn.Linear(8, 32))
        self.lin1 = Linear(nn.Linear(32, 3))

    def forward(self, x):
        return self.lin1(F.relu(self.lin0(x)))

    def merge_and_unload(self):
        with torch.no_grad():
            for module in (self.lin0, self.lin1):
                module.merge()
        merged = nn.Sequential(self.lin0.base_layer, nn.ReLU(), self.lin1.base_layer)
        return merged


x = torch.randn(256, 8)
y = (x[:, 0] + 0.5 * x[:, 1] > 0.8).long() + (x[:, 2] > 1.0).long()
model = MLP()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for step in range(30):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    adapted = model(x)
    print(f"with the adapter: loss {F.cross_entropy(adapted, y).item():.4f}")
    merged_model = model.merge_and_unload()
    merged = merged_model(x)
    print(f"merged: loss {F.cross_entropy(merged, y).item():.4f}")
    print(f"largest difference of the logits {(adapted - merged).abs().max().item():.6f}")
