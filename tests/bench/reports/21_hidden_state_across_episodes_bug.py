"""Distil a privileged teacher into a recurrent depth policy over parallel robots."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
ENVS, DEPTH, PROPRIO, ACTIONS = 16, 24, 6, 3


class Envs:
    """Robots that fall now and then and are then put on a new terrain."""

    def __init__(self):
        self.terrain = torch.randn(ENVS, 4)
        self.show = torch.randn(4, DEPTH)

    def step(self):
        done = torch.rand(ENVS) < 0.4
        self.terrain[done] = torch.randn(int(done.sum()), 4)
        depth = self.terrain @ self.show + 0.5 * torch.randn(ENVS, DEPTH)
        return depth, torch.randn(ENVS, PROPRIO), done


class DepthPolicy(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.size = size
        self.encoder = nn.Sequential(nn.Linear(DEPTH, size), nn.ELU())
        self.gru = nn.GRUCell(size + PROPRIO, size)
        self.actor = nn.Linear(size, ACTIONS)

    def forward(self, depth, proprio, hidden):
        hidden = self.gru(torch.cat([self.encoder(depth), proprio], -1), hidden)
        return self.actor(hidden), hidden


envs, policy = Envs(), DepthPolicy()
teacher = nn.Linear(4 + PROPRIO, ACTIONS).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
hidden = torch.zeros(ENVS, policy.size)
for iteration in range(5):
    losses = []
    for _ in range(6):
        depth, proprio, done = envs.step()
        actions, hidden = policy(depth, proprio, hidden)
        target = teacher(torch.cat([envs.terrain, proprio], -1))
        losses.append(F.mse_loss(actions, target))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden = hidden.detach()
    print(iteration, loss.item())
