"""Combine GRPO with supervised fine-tuning on expert answers (CHORD)."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, LENGTH, PROMPTS, GROUP = 24, 5, 8, 8


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, 32)
        self.position = nn.Embedding(LENGTH, 32)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCAB))

    def forward(self, prompts):
        return self.head(self.prompt(prompts)[:, None] + self.position.weight)


def logps_of(policy, prompts, tokens):
    return F.log_softmax(policy(prompts), -1).gather(-1, tokens[..., None]).squeeze(-1)


def chord_sft_loss(policy, prompts, tokens):
    per_token_logps = logps_of(policy, prompts, tokens)
    per_token_probs = torch.exp(per_token_logps)
    phi = per_token_probs * (1 - per_token_probs)
    return -(phi * per_token_logps).mean()


def grpo_loss(policy, prompts):
    with torch.no_grad():
        tokens = torch.distributions.Categorical(logits=policy(prompts)).sample()
    rewards = (tokens == expert[prompts]).float().mean(1).view(PROMPTS, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    return -(advantages.view(-1, 1) * logps_of(policy, prompts, tokens)).mean(), rewards.mean().item()


def mu(step, warmup=20, decay=120, peak=0.9, valley=0.3):
    if step < warmup:
        return peak * (step + 1) / warmup
    return max(valley, peak - (peak - valley) * (step - warmup) / decay)


expert = torch.randint(VOCAB, (PROMPTS, LENGTH))
policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
prompts = torch.arange(PROMPTS).repeat_interleave(GROUP)
for step in range(150):
    loss_grpo, reward = grpo_loss(policy, prompts)
    loss_chord = chord_sft_loss(policy, torch.arange(PROMPTS), expert)
    weight = mu(step)
    loss = (1 - weight) * loss_grpo + weight * 10 * loss_chord
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        with torch.no_grad():
            nll = -logps_of(policy, torch.arange(PROMPTS), expert).mean().item()
        print(step, "reward", reward, "expert nll", nll)
