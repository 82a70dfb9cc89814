"""Language-model pretraining with gradient accumulation."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


@dataclass
class TrainArgs:
    steps: int = 4
    grad_acc_steps: int = 4
    clip: float = 0.1
    lr: float = 0.5


class LM(nn.Module):
    def __init__(self, vocab=50, size=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, size)
        self.mix = nn.Sequential(nn.Linear(size, 64), nn.GELU(), nn.Linear(64, vocab))

    def forward(self, ids, labels):
        return F.cross_entropy(self.mix(self.embed(ids)).mT, labels)


def batches(size=8, length=16):
    while True:
        ids = torch.randint(50, (size, length + 1))
        ids[:, 1::2] = (ids[:, :-1:2] * 3 + 1) % 50
        yield ids[:, :-1], ids[:, 1:]


args, data = TrainArgs(), batches()
model = LM()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
micro_step, step = 0, 0
while step < args.steps:
    ids, labels = next(data)
    loss = model(ids, labels) / args.grad_acc_steps
    loss.backward()
    micro_step += 1
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=args.clip)
    if micro_step % args.grad_acc_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(step, loss.item() * args.grad_acc_steps, "norm", norm.item())
