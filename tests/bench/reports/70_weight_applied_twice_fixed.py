"""Track points in videos with a supervised loss and unsupervised temporal and subspace losses."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Loss(nn.Module):
    def __init__(self, log_weight):
        super().__init__()
        self.register_buffer("log_weight", torch.tensor(float(log_weight)))

    @property
    def weight(self):
        return 1.0 / (2.0 * torch.exp(self.log_weight))


class TemporalLoss(Loss):
    def forward(self, keypoints, epsilon=0.06):
        speed = (keypoints[1:] - keypoints[:-1]).norm(dim=-1)
        scalar_loss = F.relu(speed - epsilon).mean()
        return scalar_loss, {"temporal": scalar_loss.item()}


class LossFactory(nn.Module):
    def __init__(self, losses):
        super().__init__()
        self.losses = nn.ModuleDict(losses)

    def forward(self, anneal_weight, **kwargs):
        tot_loss, logs = 0.0, {}
        for name, loss_instance in self.losses.items():
            curr_loss, values = loss_instance(**kwargs)
            current_weighted_loss = loss_instance.weight * curr_loss
            tot_loss = tot_loss + anneal_weight * current_weighted_loss
            logs.update(values)
        return tot_loss, logs


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, frames):
        return self.net(frames).view(-1, 3, 2)


projection = torch.randn(6, 20) / 3


def video(frames):
    time = torch.linspace(0, 2 * math.pi, frames)[:, None]
    points = torch.sin(time + torch.arange(6.0))
    return points @ projection + 0.8 * torch.randn(frames, 20), points.view(-1, 3, 2)


model = Tracker()
factory = LossFactory({"temporal": TemporalLoss(log_weight=3.5)})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
labeled, points = video(40)
for step in range(300):
    unlabeled, _ = video(120)
    supervised = F.mse_loss(model(labeled), points)
    unsupervised, logs = factory(anneal_weight=min(1.0, step / 50), keypoints=model(unlabeled))
    loss = supervised + unsupervised
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 59:
        print(step, "supervised", supervised.item(), logs)
test, truth = video(400)
with torch.no_grad():
    print("test error", F.mse_loss(model(test), truth).item())
