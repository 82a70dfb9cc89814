"""Imitation learning of a trajectory planner by flow matching."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
HORIZON, FEATURES = 4, 8


class FlowMatchingPlanner(nn.Module):
    def __init__(self, hidden=64, steps=8):
        super().__init__()
        self.steps = steps
        self.velocity = nn.Sequential(
            nn.Linear(HORIZON + FEATURES + 1, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, HORIZON),
        )

    def field(self, x, t, scene):
        return self.velocity(torch.cat([x, t, scene], -1))

    def forward(self, scene):
        x = torch.randn(len(scene), HORIZON)
        for i in range(self.steps):
            t = torch.full((len(scene), 1), i / self.steps)
            x = x + self.field(x, t, scene) / self.steps
        return x

    def compute_planner_loss(self, scene, trajectory):
        noise, t = torch.randn_like(trajectory), torch.rand(len(scene), 1)
        x = (1 - t) * noise + t * trajectory
        return F.mse_loss(self.field(x, t, scene), trajectory - noise)


def sample_batch(size=128):
    """At an obstacle the expert passes on the left as often as on the right."""
    scene = torch.randn(size, FEATURES)
    side = torch.randint(2, (size, 1)) * 2.0 - 1.0
    return scene, side * torch.linspace(0.5, 2.0, HORIZON)


planner = FlowMatchingPlanner()
optimizer = torch.optim.AdamW(planner.parameters(), lr=2e-3)
for step in range(6):
    scene, trajectory = sample_batch()
    loss = planner.compute_planner_loss(scene, trajectory)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
