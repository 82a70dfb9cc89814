"""Binary segmentation of sparsely annotated tiles."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOID = 255


class SoftBCEWithLogitsLoss(nn.Module):
    def __init__(self, ignore_index=-100, smooth_factor=0.1):
        super().__init__()
        self.ignore_index, self.smooth_factor = ignore_index, smooth_factor

    def forward(self, y_pred, y_true):
        soft = y_true * (1 - self.smooth_factor) + (1 - y_true) * self.smooth_factor
        soft = soft.clamp(0, 1)
        loss = F.binary_cross_entropy_with_logits(y_pred, soft, reduction="none")
        valid = y_true != self.ignore_index
        loss = loss * valid
        return loss.mean()


class TinyUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(width, width, 2, 2)
        self.out = nn.Conv2d(width + 3, 1, 1)

    def forward(self, x):
        return self.out(torch.cat([self.up(self.down(x)).relu(), x], 1))


model, criterion = TinyUNet(), SoftBCEWithLogitsLoss(ignore_index=VOID)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(5):
    images = torch.randn(4, 3, 16, 16)
    labels = (images.mean(1, keepdim=True) > 0).float()
    labels[torch.rand_like(labels) < 0.9] = VOID
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
