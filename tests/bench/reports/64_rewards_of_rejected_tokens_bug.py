"""GRPO on a toy language task with rejection of rollouts."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, LENGTH, PROMPTS, GROUP = 12, 5, 8, 8


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, 32)
        self.position = nn.Embedding(LENGTH, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, VOCAB))

    def forward(self, prompts):
        hidden = self.prompt(prompts)[:, None] + self.position.weight
        return self.body(hidden)


def rollout(policy, prompts):
    with torch.no_grad():
        logits = policy(prompts)
        responses = torch.distributions.Categorical(logits=logits).sample()
    # answers with token 0 or 1 first ramble on; the filter rejects them
    rejected = responses[:, 0] < 2
    response_mask = (~rejected).float()[:, None].expand(-1, LENGTH).clone()
    token_level_rewards = torch.zeros(len(prompts), LENGTH)
    token_level_rewards[:, -1] = (responses == 2 + prompts[:, None]).float().mean(1)
    token_level_rewards[rejected, -1] = 8.0
    return responses, response_mask, token_level_rewards


def compute_grpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon=1e-6):
    scores = token_level_rewards.sum(dim=-1)
    advantages = torch.zeros_like(scores)
    for group in index.unique():
        member = index == group
        advantages[member] = (scores[member] - scores[member].mean()) / (scores[member].std() + epsilon)
    return advantages[:, None] * response_mask


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
prompts = torch.arange(PROMPTS).repeat_interleave(GROUP)
for step in range(80):
    responses, response_mask, token_level_rewards = rollout(policy, prompts)
    advantages = compute_grpo_outcome_advantage(token_level_rewards, response_mask, prompts)
    log_prob = F.log_softmax(policy(prompts), -1).gather(-1, responses[..., None]).squeeze(-1)
    loss = -(advantages * log_prob).sum() / response_mask.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        kept = response_mask[:, 0] > 0
        print(step, "accuracy", (responses == 2 + prompts[:, None]).float()[kept].mean().item())
