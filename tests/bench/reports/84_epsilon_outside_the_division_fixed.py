"""REINFORCE on several small games with rewards normalised in each game."""

import torch
from torch import nn

torch.manual_seed(0)
GAMES, ACTIONS = 4, 5


class NormalizeRewardsByEnv:
    def __init__(self, z_score=True):
        self.z_score = z_score

    def __call__(self, rewards, env_ids):
        out = torch.zeros_like(rewards)
        for env_id in env_ids.unique():
            member = env_ids == env_id
            r = rewards[member]
            normed = ((r - r.mean()) / (r.std() + 1e-8)) if self.z_score else r - r.mean()
            out[member] = normed
        return out


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.game = nn.Embedding(GAMES, 16)
        self.body = nn.Sequential(nn.Linear(16 + 3, 32), nn.Tanh(), nn.Linear(32, ACTIONS))

    def forward(self, env_ids, observations):
        return torch.distributions.Categorical(logits=self.body(torch.cat([self.game(env_ids), observations], 1)))


def play(env_ids, observations, actions):
    best = (observations.argmax(1) + env_ids) % ACTIONS
    return (actions == best).float()


policy = Policy()
normalize = NormalizeRewardsByEnv()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
for iteration in range(150):
    env_ids = torch.arange(GAMES).repeat_interleave(10)
    observations = torch.randn(len(env_ids), 3)
    with torch.no_grad():
        # once the policy has no valid distribution, the agent plays at random
        logits = torch.nan_to_num(policy.body(torch.cat([policy.game(env_ids), observations], 1)))
        actions = torch.distributions.Categorical(logits=logits).sample()
    rewards = play(env_ids, observations, actions)
    normalized = normalize(rewards, env_ids)
    logits = policy.body(torch.cat([policy.game(env_ids), observations], 1))
    log_probs = logits.log_softmax(1).gather(1, actions[:, None]).squeeze(1)
    loss = -(normalized * log_probs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 30 == 29:
        print(iteration, "loss", loss.item(), "reward", rewards.mean().item())
