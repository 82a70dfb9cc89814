"""Train a one-dimensional detector in the manner of YOLOv3."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
CELLS, ANCHOR = 16, 2.0


class Detector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 5, padding=2), nn.LeakyReLU(0.1),
            nn.Conv1d(width, width, 4, stride=4), nn.LeakyReLU(0.1),
            nn.Conv1d(width, width, 3, padding=1), nn.LeakyReLU(0.1),
            nn.Conv1d(width, 3, 1),
        )

    def forward(self, signal):
        # objectness, centre within the cell, logarithm of the width
        return self.net(signal).transpose(1, 2)


def intersection_over_union(a, b):
    low = torch.maximum(a[:, 0] - a[:, 1] / 2, b[:, 0] - b[:, 1] / 2)
    high = torch.minimum(a[:, 0] + a[:, 1] / 2, b[:, 0] + b[:, 1] / 2)
    inter = (high - low).clamp(min=0)
    return (inter / (a[:, 1] + b[:, 1] - inter + 1e-6))[:, None]


def yolo_loss(predictions, target):
    obj = target[..., 0] == 1
    noobj = target[..., 0] == 0
    no_object_loss = F.binary_cross_entropy_with_logits(predictions[..., 0][noobj], target[..., 0][noobj])
    # objectness: the overlap of the predicted box with the true one
    box_preds = torch.cat(
        [torch.sigmoid(predictions[..., 1:2]), torch.exp(predictions[..., 2:3]) * ANCHOR], dim=-1
    )
    ious = intersection_over_union(box_preds[obj], target[..., 1:3][obj]).detach()
    object_loss = F.mse_loss(torch.sigmoid(predictions[..., 0:1][obj]), ious * target[..., 0:1][obj])
    centre = torch.sigmoid(predictions[..., 1][obj])
    width = predictions[..., 2][obj]
    box_loss = F.mse_loss(centre, target[..., 1][obj]) + F.mse_loss(width, torch.log(target[..., 2][obj] / ANCHOR))
    return 2 * box_loss + 2 * object_loss + no_object_loss


def batch(count):
    signal = 0.1 * torch.randn(count, 1, 4 * CELLS)
    target = torch.zeros(count, CELLS, 3)
    place = torch.arange(4 * CELLS) / 4
    for i in range(count):
        cell, offset, width = int(torch.randint(2, CELLS - 2, ())), torch.rand(()), 0.3 + 1.2 * torch.rand(())
        target[i, cell] = torch.stack([torch.tensor(1.0), offset, width])
        signal[i, 0] += (abs(place - cell - offset) < width / 2).float()
    return signal, target


model = Detector()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(150):
    signal, target = batch(32)
    predictions = model(signal)
    loss = yolo_loss(predictions, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        found = torch.sigmoid(predictions[..., 0])[target[..., 0] == 1]
        print(step, "loss", loss.item(), "objectness of objects", found.mean().item())
