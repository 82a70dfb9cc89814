"""Segment a sparse surface with cross-entropy and soft Dice."""

import torch
from torch import nn

torch.manual_seed(0)


class SoftDiceLoss(nn.Module):
    def __init__(self, apply_nonlin=None, smooth=1e-5):
        super().__init__()
        self.apply_nonlin, self.smooth = apply_nonlin, smooth

    def forward(self, prediction, target):
        if self.apply_nonlin is not None:
            prediction = self.apply_nonlin(prediction)
        axes = tuple(range(2, prediction.ndim))
        intersection = (prediction * target).sum(axes)
        denominator = prediction.sum(axes) + target.sum(axes)
        dice = (2 * intersection + self.smooth) / denominator.add(self.smooth).clip(1e-8)
        return -dice.mean()


def create_loss(name):
    if name == "BCEWithLogitsLoss":
        return nn.BCEWithLogitsLoss()
    if name == "SoftDiceLoss":
        return SoftDiceLoss()
    raise ValueError(name)


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 1, 1),
)
nn.init.constant_(model[-1].bias, -0.14)
losses = [create_loss(name) for name in ("BCEWithLogitsLoss", "SoftDiceLoss")]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(8):
    image = torch.randn(4, 1, 24, 24)
    target = (image > 1.03).float()
    logits = model(image)
    terms = [loss(logits, target) for loss in losses]
    total = sum(terms)
    optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, total.item(), "cross-entropy", terms[0].item())
