"""Train a segmenter on a folder of volumes and one of ground truth."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


images = torch.randn(96, 1, 12, 12)
images += (torch.rand(96, 1, 1, 1) < 0.5) * 1.0
masks = (F.avg_pool2d(images, 3, 1, 1) > 0.5).float()

train_pairs = DataLoader(TensorDataset(images, masks), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(5):
    losses = []
    for image, mask in train_pairs:
        loss = F.binary_cross_entropy_with_logits(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        right = ((model(images) > 0) == masks.bool()).float().mean().item()
    print(epoch, sum(losses) / len(losses), "accuracy", right)
