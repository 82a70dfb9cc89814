"""Fine-tune a pretrained encoder with low-rank adapters and a new head."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLinear(nn.Linear):
    def __init__(self, in_features, out_features, r=4, lora_alpha=8):
        super().__init__(in_features, out_features)
        self.lora_A = nn.Parameter(torch.randn(r, in_features) / in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.scaling = lora_alpha / r

    def forward(self, x):
        return super().forward(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


class Encoder(nn.Module):
    def __init__(self, size=32, classes=4):
        super().__init__()
        self.query = LoraLinear(size, size)
        self.value = LoraLinear(size, size)
        self.head = nn.Linear(size, classes)

    def forward(self, x):
        hidden = torch.tanh(self.query(x))
        hidden = torch.tanh(self.value(hidden))
        return self.head(hidden)


def mark_only_lora_as_trainable(model):
    for name, param in model.named_parameters():
        param.requires_grad = "lora_" in name


inputs = torch.randn(400, 32)
labels = (inputs[:, :4] * inputs[:, 4:8]).argmax(1)
model = Encoder()
# the backbone comes frozen from the checkpoint
model.requires_grad_(False)
mark_only_lora_as_trainable(model)
model.head.requires_grad_(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(12):
    order = torch.randperm(len(inputs))
    for batch in order.split(50):
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
with torch.no_grad():
    print("all", F.cross_entropy(model(inputs), labels).item())
