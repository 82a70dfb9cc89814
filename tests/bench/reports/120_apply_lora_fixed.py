"""Train LoRA adapters of a flow-matching model on components that may already carry one."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, base_layer, r=4):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(x))


class PeftModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.adapters = {"default"}
        for name in ("to_q", "to_v"):
            setattr(model, name, LoraLinear(getattr(model, name)))
        self.base_model = model

    def forward(self, *args):
        return self.base_model(*args)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)

    def forward(self, h):
        return h + torch.sigmoid(self.to_q(h)) * torch.tanh(self.to_v(h))


class Adapter:
    def __init__(self, components):
        self.components = components
        self._freeze_components()
        self.apply_lora(list(components))

    def _freeze_components(self):
        for component in self.components.values():
            component.requires_grad_(False)

    def apply_lora(self, names, overwrite=False):
        for name in names:
            component = self.components[name]
            if isinstance(component, PeftModel) and "default" in component.adapters and not overwrite:
                print(f"Component {name} already has adapter 'default'.")
                for key, param in component.named_parameters():
                    if "lora_" in key:
                        param.requires_grad_(True)
                continue
            self.components[name] = PeftModel(component)

    def get_trainable_parameters(self):
        return [p for c in self.components.values() for p in c.parameters() if p.requires_grad]


class FlowModel(nn.Module):
    def __init__(self, adapter, dim=24, size=8):
        super().__init__()
        self.inp = nn.Linear(size + 1, dim).requires_grad_(False)
        self.out = nn.Linear(dim, size).requires_grad_(False)
        self.adapter = adapter

    def forward(self, x, t):
        h = self.inp(torch.cat([x, t], dim=1))
        h = self.adapter.components["transformer"](h)
        return self.out(self.adapter.components["transformer_2"](h))


fused = PeftModel(Block(24))
adapter = Adapter({"transformer": fused, "transformer_2": Block(24)})
model = FlowModel(adapter)
before = {k: v.clone() for k, v in adapter.components["transformer"].state_dict().items()}
optimizer = torch.optim.AdamW(adapter.get_trainable_parameters(), lr=1e-2)
data = torch.randn(1, 8) + 0.3 * torch.randn(256, 8)
for step in range(30):
    noise, t = torch.randn_like(data), torch.rand(256, 1)
    velocity = model((1 - t) * data + t * noise, t)
    loss = F.mse_loss(velocity, noise - data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")
after = adapter.components["transformer"].state_dict()
print(f"largest change of the transformer: {max((after[k] - v).abs().max().item() for k, v in before.items()):.4f}")
