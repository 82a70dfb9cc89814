"""A token-normalised policy gradient over groups of sampled completions."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB, EOS, GROUP, LENGTH = 20, 0, 8, 12


class Policy(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0]).log_softmax(-1)


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)


@torch.no_grad()
def generate():
    ids = torch.full((GROUP, 1), 1)
    for _ in range(LENGTH):
        ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].exp(), 1)], 1)
    completion = ids[:, 1:]
    is_eos = completion == EOS
    ends = torch.where(is_eos.any(1), is_eos.int().argmax(1), LENGTH)
    mask = (torch.arange(LENGTH) <= ends[:, None]).float()
    num_items = mask.sum()
    truncated = ~is_eos.any(1)
    mask = mask * (~truncated)[:, None]
    return ids, mask, num_items


for step in range(4):
    ids, mask, num_items = generate()
    rewards = (ids == 7).float().sum(1) - 0.1 * mask.sum(1)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logps = policy(ids[:, :-1]).gather(-1, ids[:, 1:, None]).squeeze(-1)
    ratio = (logps - logps.detach()).exp()
    clipped = ratio.clamp(0.8, 1.28)
    per_token = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    loss = (per_token * mask).sum() / num_items
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "tokens", mask.sum().item(), "of", num_items.item())
