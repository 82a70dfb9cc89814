"""Train an open-vocabulary detector's box head with L1 and generalized IoU."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def to_corners(boxes):
    centre, size = boxes.chunk(2, -1)
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def area(boxes):
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def generalized_box_iou(first, second):
    """The generalized IoU of pairs of boxes."""
    left, right = (
        torch.max(first[..., :2], second[..., :2]),
        torch.min(first[..., 2:], second[..., 2:]),
    )
    inter = (right - left).clamp(min=0).prod(-1)
    union = area(first) + area(second) - inter
    low, high = (
        torch.min(first[..., :2], second[..., :2]),
        torch.max(first[..., 2:], second[..., 2:]),
    )
    hull = (high - low).clamp(min=0).prod(-1)
    return inter / (union + 1e-6) - (hull - union) / (hull + 1e-6)


class BoxHead(nn.Module):
    def __init__(self, features=16, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, 4))

    def forward(self, features):
        return self.net(features).sigmoid()


def box_loss(predicted, target):
    l1 = F.l1_loss(predicted, target)
    giou = 1 - generalized_box_iou(to_corners(predicted), to_corners(target))
    return l1 + 2 * giou.mean()


head = BoxHead()
optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
encode = torch.randn(4, 16)
for step in range(10):
    target = torch.cat([torch.rand(64, 2) * 0.4 + 0.3, torch.rand(64, 2) * 0.2 + 0.05], 1)
    predicted = head(target @ encode)
    loss = box_loss(predicted, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    overlap = generalized_box_iou(to_corners(predicted.detach()), to_corners(target)).mean()
    print(step, loss.item(), "overlap", overlap.item())
