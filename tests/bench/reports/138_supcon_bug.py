"""Supervised contrastive training with one view of each image."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class SupConLoss(nn.Module):
    def __init__(self, temperature=0.07, base_temperature=0.07):
        super().__init__()
        self.temperature = temperature
        self.base_temperature = base_temperature

    def forward(self, features, labels):
        batch_size = features.shape[0]
        labels = labels.contiguous().view(-1, 1)
        mask = torch.eq(labels, labels.T).float()

        contrast_count = features.shape[1]
        contrast_feature = torch.cat(torch.unbind(features, dim=1), dim=0)
        anchor_feature, anchor_count = contrast_feature, contrast_count

        anchor_dot_contrast = torch.matmul(anchor_feature, contrast_feature.T) / self.temperature
        logits_max, _ = torch.max(anchor_dot_contrast, dim=1, keepdim=True)
        logits = anchor_dot_contrast - logits_max.detach()

        mask = mask.repeat(anchor_count, contrast_count)
        logits_mask = 1 - torch.eye(batch_size * anchor_count)
        mask = mask * logits_mask

        exp_logits = torch.exp(logits) * logits_mask
        log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))

        mean_log_prob_pos = (mask * log_prob).sum(1) / mask.sum(1)
        loss = -(self.temperature / self.base_temperature) * mean_log_prob_pos
        return loss.view(anchor_count, batch_size).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


centers = torch.randn(10, 12)
encoder = Encoder()
criterion = SupConLoss(temperature=0.1)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
for step in range(60):
    labels = torch.randint(0, 10, (32,))
    images = centers[labels] + 0.5 * torch.randn(32, 12)
    features = encoder(images).unsqueeze(1)
    loss = criterion(features, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
