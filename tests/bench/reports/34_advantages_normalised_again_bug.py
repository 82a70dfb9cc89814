"""GRPO on sampled completions: actor with group rewards, learner on a subsample."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB, LENGTH, PROMPTS, GROUP, KEPT = 12, 6, 4, 8, 20


class Policy(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, size)
        self.cell = nn.GRUCell(VOCAB, size)
        self.head = nn.Linear(size, VOCAB)

    def log_probs(self, prompt, tokens):
        hidden, found = self.prompt(prompt), []
        previous = torch.zeros(len(prompt), VOCAB)
        for token in tokens.unbind(1):
            hidden = self.cell(previous, hidden)
            found.append(self.head(hidden).log_softmax(-1).gather(1, token[:, None]))
            previous = nn.functional.one_hot(token, VOCAB).float()
        return torch.cat(found, 1)


class Actor:
    def __init__(self, policy):
        self.policy = policy

    @torch.no_grad()
    def collect(self):
        prompt = torch.arange(PROMPTS).repeat_interleave(GROUP)
        tokens = torch.randint(VOCAB, (PROMPTS * GROUP, LENGTH))
        old = self.policy.log_probs(prompt, tokens)
        match = (tokens == prompt[:, None]).float().mean(1)
        reward = torch.where(prompt == 0, (match > 0.3).float(), match)
        grouped = reward.view(PROMPTS, GROUP)
        advantage = (grouped - grouped.mean(1, keepdim=True)) / (
            grouped.std(1, keepdim=True) + 1e-4
        )
        return prompt, tokens, old, advantage.flatten()


class Learner:
    def __init__(self, policy, norm_return=True):
        self.policy, self.norm_return = policy, norm_return
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def learn(self, prompt, tokens, old, advantage):
        kept = torch.randperm(len(prompt))[:KEPT]
        prompt, tokens, old, advantage = prompt[kept], tokens[kept], old[kept], advantage[kept]
        given = advantage
        if self.norm_return:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (self.policy.log_probs(prompt, tokens) - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        scaled = torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
        loss = -scaled.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), (advantage - given).abs().mean().item()


policy = Policy()
actor, learner = Actor(policy), Learner(policy)
for iteration in range(6):
    batch = actor.collect()
    for _ in range(2):
        loss, apart = learner.learn(*batch)
    print(iteration, loss, "advantages apart from the actor's by", apart)
