"""Continue the fine-tuning of an adapter and its classification head from a checkpoint."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, size) / size**0.5)
        self.lora_b = nn.Parameter(torch.zeros(size, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class Classifier(nn.Module):
    def __init__(self, size=32, classes=4):
        super().__init__()
        self.encoder = nn.Sequential(LoraLinear(size), nn.GELU(), LoraLinear(size), nn.GELU())
        self.classifier = nn.Linear(size, classes)

    def forward(self, x):
        return self.classifier(self.encoder(x))


def adapter_state(model):
    state = {}
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            state["base_model." + name] = parameter.detach().clone()
        elif name.startswith("classifier."):
            key = name.replace("classifier.", "classifier.modules_to_save.")
            state["base_model." + key] = parameter.detach().clone()
    return state


def load_adapter(model, state):
    renamed = {key.removeprefix("base_model."): value for key, value in state.items()}
    model.load_state_dict(renamed, strict=False)
    return model


def train(model, steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for step in range(steps):
        index = torch.randint(256, (64,))
        loss = F.cross_entropy(model(inputs[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(step, loss.item())


inputs = torch.randn(256, 32)
labels = (inputs @ torch.randn(32, 4)).argmax(-1)
pretrained = Classifier()
first = copy.deepcopy(pretrained)
train(first, 60)
print("resumed")
resumed = Classifier()
resumed.encoder.load_state_dict(pretrained.encoder.state_dict())
load_adapter(resumed, adapter_state(first))
train(resumed, 11)
