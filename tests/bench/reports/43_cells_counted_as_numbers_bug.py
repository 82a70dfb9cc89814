"""Generate cell layouts with the right number of cells: denoising and a counting loss."""

import torch
from torch import nn

torch.manual_seed(0)


class BinarizeSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0.5).float()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Generator(nn.Module):
    def __init__(self, width=16, channels=2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.SiLU())
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, noisy):
        return self.out(self.body(noisy)).sigmoid()


def counting_loss(predicted, truth):
    binary = BinarizeSTE.apply(predicted)
    losses, total = {}, 0.0
    for i in range(len(predicted)):
        for j in range(predicted.shape[1]):
            true_count = truth[i, j].sum() / 9.0
            count = binary[i, j].sum() / 9.0
            channel_loss = (true_count - count).abs()
            losses[f"batch_{i}_channel_{j}"] = channel_loss.item()
            total += channel_loss.item()
    return total / len(losses), losses


model = Generator()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
cells = nn.functional.max_pool2d((torch.rand(8, 2, 24, 24) < 0.015).float(), 3, 1, 1)
for step in range(10):
    noisy = cells + 0.8 * torch.randn_like(cells)
    predicted = model(noisy)
    denoising = (predicted - cells).square().mean()
    counting, _ = counting_loss(predicted, cells)
    loss = denoising + 0.05 * counting
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, float(loss), "counting", float(counting))
