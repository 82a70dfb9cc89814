"""Fine-tune a new adapter on top of a frozen, already trained one."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.base_layer = nn.Linear(size, size).requires_grad_(False)
        self.lora_A = nn.ModuleDict()
        self.lora_B = nn.ModuleDict()
        self.active_adapters = []

    def add_adapter(self, adapter_name, r=4, is_trainable=True):
        size = self.base_layer.in_features
        self.lora_A[adapter_name] = nn.Linear(size, r, bias=False)
        self.lora_B[adapter_name] = nn.Linear(r, size, bias=False)
        nn.init.zeros_(self.lora_B[adapter_name].weight)
        self.set_requires_grad(adapter_name, is_trainable)

    def set_requires_grad(self, adapter_name, requires_grad):
        self.lora_A[adapter_name].requires_grad_(requires_grad)
        self.lora_B[adapter_name].requires_grad_(requires_grad)

    def set_adapter(self, adapter_names):
        for name in self.lora_A:
            self.set_requires_grad(name, name in adapter_names)
        self.active_adapters = list(adapter_names)

    def forward(self, x):
        out = self.base_layer(x)
        for name in self.active_adapters:
            out = out + self.lora_B[name](self.lora_A[name](x))
        return out


class PeftBackbone(nn.Module):
    def __init__(self, size=16, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(LoraLinear(size) for _ in range(layers))

    def add_adapter(self, adapter_name, is_trainable=True):
        for layer in self.layers:
            layer.add_adapter(adapter_name, is_trainable=is_trainable)

    def set_adapter(self, adapter_names):
        for layer in self.layers:
            layer.set_adapter(adapter_names)

    def set_requires_grad(self, adapter_name, requires_grad):
        for layer in self.layers:
            layer.set_requires_grad(adapter_name, requires_grad)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class SafeEncoder(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.target_backbone = PeftBackbone(size)
        self.target_backbone.add_adapter("adapter1", is_trainable=False)
        self.target_backbone.add_adapter("ft_adapter1")
        for layer in self.target_backbone.layers:
            nn.init.normal_(layer.lora_B["adapter1"].weight, std=0.3)
        self.head = nn.Linear(size, 1)

    def forward(self, x):
        self.target_backbone.set_adapter(["adapter1", "ft_adapter1"])
        self.target_backbone.set_requires_grad("adapter1", False)
        return self.head(self.target_backbone(x)).squeeze(-1)


model = SafeEncoder()
pretrained = {k: v.clone() for k, v in model.state_dict().items() if ".adapter1" in k}
x = torch.randn(128, 16)
target = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2]
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)
for step in range(30):
    loss = F.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")

state = model.state_dict()
moved = max((state[k] - v).abs().max().item() for k, v in pretrained.items())
print(f"largest change of the pretrained adapter: {moved:.4f}")
