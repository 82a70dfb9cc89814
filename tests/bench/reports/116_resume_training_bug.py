"""Pre-train an encoder, stop, and resume from the checkpoint."""

import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self, inputs=32, dim=64, classes=10):
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.body = nn.Sequential(nn.Linear(inputs, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.body(self.norm(x)))


def save_checkpoint(output_dir, backbone, lr_scheduler, global_step, optimizer=None):
    torch.save(backbone.state_dict(), os.path.join(output_dir, "backbone.pt"))
    torch.save(lr_scheduler.state_dict(), os.path.join(output_dir, "scheduler.pt"))
    torch.save({"global_step": global_step}, os.path.join(output_dir, "step.pt"))


def load_checkpoint(output_dir, backbone, lr_scheduler, optimizer=None):
    backbone.load_state_dict(torch.load(os.path.join(output_dir, "backbone.pt")))
    lr_scheduler.load_state_dict(torch.load(os.path.join(output_dir, "scheduler.pt")))
    return torch.load(os.path.join(output_dir, "step.pt"))["global_step"]


def build():
    backbone = Backbone()
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=2e-2, betas=(0.9, 0.999), weight_decay=0.05)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return backbone, optimizer, lr_scheduler


centers = torch.randn(10, 32)


def train(backbone, optimizer, lr_scheduler, start, stop):
    for global_step in range(start, stop):
        labels = torch.randint(0, 10, (1024,))
        x = 0.5 * centers[labels] + 0.8 * torch.randn(1024, 32)
        loss = F.cross_entropy(backbone(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        print(f"step {global_step}: loss {loss.item():.4f}")


with tempfile.TemporaryDirectory() as output_dir:
    backbone, optimizer, lr_scheduler = build()
    train(backbone, optimizer, lr_scheduler, 0, 15)
    save_checkpoint(output_dir, backbone, lr_scheduler, 15, optimizer)
    backbone, optimizer, lr_scheduler = build()
    global_step = load_checkpoint(output_dir, backbone, lr_scheduler, optimizer)
    train(backbone, optimizer, lr_scheduler, global_step, 30)
