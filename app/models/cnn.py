"""CNN: two convolutions with BatchNorm, on 8 small pictures."""

import torch
from torch import nn


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(block(3, 8), block(8, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, pictures):
        maps = self.features(pictures)
        return self.head(maps.mean(dim=(2, 3)))


def build(devices):
    device = devices[0]
    model = CNN().to(device)
    pictures = torch.randn(8, 3, 16, 16)
    classes = torch.randint(0, 10, (8,))

    def loss():
        scores = model(pictures.to(device))
        return nn.functional.cross_entropy(scores, classes.to(device))

    return model, loss


# mypy: ignore-errors
