"""Fine-tune a LoRA adapter, save it, and evaluate it on a fresh copy of the base model."""

import copy
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLayer(nn.Module):
    def __init__(self, base_layer, r=4, lora_alpha=16):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = lora_alpha / r

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling


class Classifier(nn.Module):
    def __init__(self, vocab=40, hidden=24, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.q_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, classes)

    def forward(self, input_ids):
        h = self.embed(input_ids)
        weights = (self.q_proj(h) @ h.transpose(1, 2)).softmax(-1)
        return self.score((weights @ self.v_proj(h)).mean(1))


class PeftModel(nn.Module):
    def __init__(self, model, config):
        super().__init__()
        model.requires_grad_(False)
        for name in config["target_modules"]:
            setattr(model, name, LoraLayer(getattr(model, name), config["r"], config["lora_alpha"]))
        self.base_model = model

    def forward(self, input_ids):
        return self.base_model(input_ids)

    def save_pretrained(self, path):
        state = {k: v for k, v in self.state_dict().items() if "lora_" in k}
        torch.save(state, os.path.join(path, "adapter_model.bin"))

    @classmethod
    def from_pretrained(cls, model, path, config):
        peft_model = cls(model, config)
        peft_model.load_state_dict(torch.load(os.path.join(path, "adapter_model.bin")), strict=False)
        return peft_model


def get_peft_model(model, config):
    return PeftModel(model, config)


def evaluate(model, input_ids, labels):
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(input_ids), labels).item()


lora_config = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "score"]}
base = Classifier()
model2 = copy.deepcopy(base)
input_ids = torch.randint(0, 40, (64, 12))
labels = (input_ids.float().mean(1) // 5).long().clamp(2, 5) - 2
print(f"base model: loss {evaluate(base, input_ids, labels):.4f}")

model = get_peft_model(base, lora_config)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
model.train()
for step in range(25):
    loss = F.cross_entropy(model(input_ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

with tempfile.TemporaryDirectory() as lora_path2:
    model.save_pretrained(lora_path2)
    model2 = PeftModel.from_pretrained(model2, lora_path2, lora_config)
print(f"fine-tuned model: loss {evaluate(model2, input_ids, labels):.4f}")
