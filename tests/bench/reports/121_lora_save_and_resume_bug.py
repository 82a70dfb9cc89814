"""Fine-tune with LoRA, save the adapter, then load it into a fresh copy and continue."""

import copy
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base, self.scaling = base, alpha / r
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, r, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(r, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x):
        return self.base(x) + self.scaling * self.lora_B["default"](self.lora_A["default"](x))


def get_peft_model(base):
    model = copy.deepcopy(base).requires_grad_(False)
    for i in (0, 2):
        model[i] = LoraLinear(model[i])
    return model


def get_peft_model_state_dict(model, state_dict=None, adapter_name="default"):
    if state_dict is None:
        state_dict = model.state_dict()
    state_dict = {k: v for k, v in state_dict.items() if "lora_" in k and adapter_name in k}
    return {k.replace(f".{adapter_name}", ""): v for k, v in state_dict.items()}


def save_pretrained(model, path):
    torch.save(get_peft_model_state_dict(model), path)


def load_adapter(model, path, adapter_name="default"):
    state = {}
    for k, v in torch.load(path).items():
        state[k.replace(".weight", f".{adapter_name}.weight")] = v
    model.load_state_dict(state, strict=False)


def train(model, steps, x, y):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for step in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


base = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
x = torch.randn(64, 12)
y = (x[:, :4] + x[:, 4:8]).argmax(1)
path = os.path.join(tempfile.mkdtemp(), "adapter_model.bin")

model = get_peft_model(base)
old_state_dict = model.state_dict
model.state_dict = (
    lambda self, *_, **__: get_peft_model_state_dict(self, old_state_dict())
).__get__(model, type(model))
train(model, 25, x, y)
save_pretrained(model, path)

print("continue")
model = get_peft_model(base)
load_adapter(model, path)
train(model, 10, x, y)
