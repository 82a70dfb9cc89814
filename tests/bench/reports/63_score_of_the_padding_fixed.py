"""Train a reward model on pairs of chosen and rejected answers."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


@dataclass
class Config:
    vocab_size: int = 40
    hidden_size: int = 32
    pad_token_id: int | None = None


class SequenceClassifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model = nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, input_ids):
        hidden, _ = self.model(self.embed_tokens(input_ids))
        scores = self.score(hidden).squeeze(-1)
        if self.config.pad_token_id is None:
            sequence_lengths = -1
        else:
            sequence_lengths = (input_ids != self.config.pad_token_id).sum(1) - 1
        return scores[torch.arange(len(input_ids)), sequence_lengths]


def answers(count):
    ids = torch.randint(1, 40, (count, 40))
    lengths = torch.randint(3, 8, (count,))
    quality = torch.randint(2, (count,))
    last = torch.where(quality > 0, torch.randint(1, 20, (count,)), torch.randint(20, 40, (count,)))
    ids[torch.arange(count), lengths - 1] = last
    ids[torch.arange(40) >= lengths[:, None]] = 0
    return ids, quality


def pairs(count):
    ids, quality = answers(4 * count)
    good, bad = ids[quality > 0], ids[quality == 0]
    return good[:count], bad[:count]


config = Config(vocab_size=40, hidden_size=32, pad_token_id=0)
model = SequenceClassifier(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(30):
    chosen, rejected = pairs(32)
    rewards_chosen = model(chosen)
    rewards_rejected = model(rejected)
    loss = -F.logsigmoid(rewards_chosen - rewards_rejected).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(step, loss.item(), "accuracy", (rewards_chosen > rewards_rejected).float().mean().item())
