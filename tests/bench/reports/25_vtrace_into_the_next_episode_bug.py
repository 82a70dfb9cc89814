"""IMPALA on batches in which several episodes follow each other."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
GAMMA, T = 0.99, 40


def vtrace(log_rhos, rewards, values, next_values, done, terminated):
    rhos = log_rhos.exp().clamp(max=1.0)
    discounts = GAMMA * (~terminated).float()
    deltas = rhos * (rewards + discounts * next_values - values)
    acc, out = torch.zeros(()), []
    for t in reversed(range(T)):
        acc = deltas[t] + GAMMA * (~done[t]).float() * rhos[t] * acc
        out.append(acc)
    targets = values + torch.stack(out[::-1])
    following = torch.cat([targets[1:], next_values[-1:]])
    advantages = rhos * (rewards + discounts * following - values)
    return targets, advantages


def collect(actor, obs_noise=0.1):
    """Two kinds of episodes, worth about 1 and about 20, cut off after 10 steps."""
    level = torch.tensor([1.0, 20.0]).repeat_interleave(10).repeat(2)
    obs = torch.stack([level / 10, torch.arange(T) % 10 / 10], 1)
    next_obs = obs + torch.tensor([0.0, 0.1])
    obs = obs + obs_noise * torch.randn_like(obs)
    with torch.no_grad():
        policy = Categorical(logits=actor(obs))
        actions = policy.sample()
    rewards = level * (0.1 + 0.1 * actions)
    done = torch.arange(T) % 10 == 9
    return obs, next_obs, actions, policy.log_prob(actions), rewards, done


actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
for step in range(5):
    obs, next_obs, actions, behaviour, rewards, done = collect(actor)
    log_probs = Categorical(logits=actor(obs)).log_prob(actions)
    values = critic(obs).squeeze(-1)
    with torch.no_grad():
        ahead = critic(next_obs).squeeze(-1)
        targets, advantages = vtrace(
            log_probs - behaviour, rewards, values, ahead, done, torch.zeros_like(done)
        )
    loss = -(log_probs * advantages).mean() + 0.5 * (targets - values).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
