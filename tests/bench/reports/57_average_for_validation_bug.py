"""Train an image classifier and validate its moving average after each epoch."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class EMA:
    def __init__(self, model, decay=0.9):
        self.online, self.decay = model, decay
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.parameter_names = {name for name, _ in model.named_parameters()}
        self.buffer_names = {
            name for name, buffer in model.named_buffers() if buffer.is_floating_point()
        }

    def parameters_of(self, model):
        for name, parameter in model.named_parameters():
            if name in self.parameter_names:
                yield name, parameter

    def buffers_of(self, model):
        for name, buffer in model.named_parameters():
            if name in self.buffer_names:
                yield name, buffer

    @torch.no_grad()
    def update(self):
        for (_, mine), (_, theirs) in zip(
            self.parameters_of(self.average), self.parameters_of(self.online), strict=False
        ):
            mine.lerp_(theirs, 1 - self.decay)
        for (_, mine), (_, theirs) in zip(
            self.buffers_of(self.average), self.buffers_of(self.online), strict=False
        ):
            mine.lerp_(theirs, 1 - self.decay)


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 3),
)
ema = EMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)


def sample(count):
    labels = torch.randint(3, (count,))
    return 20 * (torch.randn(count, 1, 8, 8) * (1 + labels.view(-1, 1, 1, 1)) * 0.3 + 2), labels


validation = sample(256)
for epoch in range(5):
    model.train()
    for _ in range(10):
        images, labels = sample(32)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update()
    ema.average.eval()
    with torch.no_grad():
        validated = F.cross_entropy(ema.average(validation[0]), validation[1]).item()
    print(epoch, loss.item(), "validated", validated)
