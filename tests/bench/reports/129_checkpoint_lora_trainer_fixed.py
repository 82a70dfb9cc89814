"""LoRA of a small encoder with gradient checkpointing in a trainer."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


@dataclass
class TrainingArguments:
    learning_rate: float = 5e-3
    max_steps: int = 25
    gradient_checkpointing: bool = True
    gradient_checkpointing_kwargs: dict = None


class LoraLinear(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + 2.0 * self.lora_B(self.lora_A(x))


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query = LoraLinear(nn.Linear(size, size))
        self.value = LoraLinear(nn.Linear(size, size))
        self.norm = nn.LayerNorm(size).requires_grad_(False)

    def forward(self, h):
        q, v = self.query(h), self.value(h)
        return self.norm(h + F.scaled_dot_product_attention(q, h, v))


class Encoder(nn.Module):
    def __init__(self, vocab=30, size=32, classes=3):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, size).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(size) for _ in range(2))
        self.classifier = nn.Linear(size, classes)
        self.checkpointing = None

    def gradient_checkpointing_enable(self, kwargs=None):
        self.checkpointing = {"use_reentrant": True} if kwargs is None else kwargs

    def forward(self, ids):
        h = self.embeddings(ids)
        for layer in self.layers:
            if self.checkpointing is not None:
                h = checkpoint(layer, h, **self.checkpointing)
            else:
                h = layer(h)
        return self.classifier(h.mean(1))


def train(model, args, ids, labels):
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=args.learning_rate)
    for step in range(args.max_steps):
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


model = Encoder()
ids = torch.randint(0, 30, (64, 10))
labels = (ids < 10).sum(1).clamp(2, 4) - 2
args = TrainingArguments(gradient_checkpointing_kwargs={"use_reentrant": False})
model.gradient_checkpointing_enable({"use_reentrant": False})
train(model, args, ids, labels)
