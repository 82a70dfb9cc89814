"""Soft actor-critic on a buffer whose terminal transitions have no next observation."""

import copy

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
OBS, ACT, GAMMA, ALPHA = 5, 2, 0.99, 0.1


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


actor, critics = mlp(OBS, 2 * ACT), nn.ModuleList(mlp(OBS + ACT, 1) for _ in range(2))
targets = copy.deepcopy(critics).requires_grad_(False)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)


def act(obs):
    mean, log_std = actor(obs).chunk(2, -1)
    policy = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
    raw = policy.rsample()
    return raw.tanh(), (policy.log_prob(raw) - (1 - raw.tanh() ** 2 + 1e-6).log()).sum(-1)


def q_values(networks, obs, action):
    x = torch.cat([obs, action], -1)
    return torch.stack([q(x).squeeze(-1) for q in networks])


def replay(size=32):
    obs, action = torch.randn(size, OBS), torch.rand(size, ACT) * 2 - 1
    next_obs, terminated = obs + 0.1 * torch.randn(size, OBS), torch.arange(size) % 8 == 7
    next_obs[terminated] = float("nan")
    return obs, action, obs.sum(-1), next_obs, terminated


for step in range(4):
    obs, action, reward, next_obs, terminated = replay()
    with torch.no_grad():
        target, ahead = reward.clone(), next_obs[~terminated]
        next_action, log_prob = act(ahead)
        next_value = q_values(targets, ahead, next_action).amin(0) - ALPHA * log_prob
        target[~terminated] += GAMMA * next_value
    critic_loss = nn.functional.mse_loss(q_values(critics, obs, action), target.expand(2, -1))
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    new_action, log_prob = act(obs)
    actor_loss = (ALPHA * log_prob - q_values(critics, obs, new_action).amin(0)).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
    print(step, critic_loss.item(), actor_loss.item())
