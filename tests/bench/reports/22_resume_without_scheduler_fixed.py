"""Surrogate training that is interrupted and resumed from its checkpoint."""

import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)


class Trainer:
    def __init__(self, total=8, warmup=2):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        ramp = LinearLR(self.optimizer, 0.1, 1.0, warmup)
        cosine = CosineAnnealingLR(self.optimizer, total - warmup)
        self.scheduler = SequentialLR(self.optimizer, [ramp, cosine], [warmup])
        self.epoch, self.rates = 0, []

    def save_model(self, file):
        state = {
            "epoch": self.epoch,
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "scheduler_state_dict": self.scheduler.state_dict(),
        }
        torch.save(state, file)

    def load_checkpoint(self, file):
        state = torch.load(file)
        self.epoch = state["epoch"]
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.scheduler.load_state_dict(state["scheduler_state_dict"])

    def train(self, until):
        while self.epoch < until:
            x = torch.randn(32, 8)
            loss = F.mse_loss(self.model(x), x.cumsum(1) / 3)
            self.optimizer.zero_grad()
            loss.backward()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
            print(self.epoch, loss.item(), "lr", self.rates[-1])


first = Trainer()
first.train(until=5)
first.save_model(file := io.BytesIO())
file.seek(0)
resumed = Trainer()
resumed.load_checkpoint(file)
resumed.train(until=8)
