"""GRPO with a separate sampling engine and a correction by importance sampling."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, LENGTH, PROMPTS, GROUP = 16, 4, 6, 8
TEMPERATURE, CAP = 0.6, 2.0


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, 24)
        self.position = nn.Embedding(LENGTH, 24)
        self.body = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, VOCAB))

    def forward(self, prompts):
        return 3 * self.body(self.prompt(prompts)[:, None] + self.position.weight)


class Engine:
    """Sample completions from a copy of the weights."""

    def __init__(self, policy):
        self.model = copy.deepcopy(policy)

    def sync(self, policy):
        self.model.load_state_dict(policy.state_dict())

    @torch.no_grad()
    def generate(self, prompts, temperature):
        logits = self.model(prompts)
        completions = torch.distributions.Categorical(logits=logits / temperature).sample()
        logps = F.log_softmax(logits / temperature, -1)
        return completions, logps.gather(-1, completions[..., None]).squeeze(-1)


def per_token_logps(policy, prompts, completions):
    logps = F.log_softmax(policy(prompts) / TEMPERATURE, -1)
    return logps.gather(-1, completions[..., None]).squeeze(-1)


policy = Policy()
engine = Engine(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
prompts = torch.arange(PROMPTS).repeat_interleave(GROUP)
for step in range(100):
    engine.sync(policy)
    completions, sampling_logps = engine.generate(prompts, TEMPERATURE)
    with torch.no_grad():
        old_logps = per_token_logps(policy, prompts, completions)
    importance_sampling_ratio = torch.exp(old_logps - sampling_logps)
    importance_sampling_ratio = torch.clamp(importance_sampling_ratio, max=CAP)
    rewards = (completions == prompts[:, None] + torch.arange(LENGTH)).float().mean(1).view(PROMPTS, GROUP)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    logps = per_token_logps(policy, prompts, completions)
    ratio = torch.exp(logps - old_logps)
    loss = -(torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * importance_sampling_ratio).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(step, "reward", rewards.mean().item(), "ratio", importance_sampling_ratio.mean().item())
