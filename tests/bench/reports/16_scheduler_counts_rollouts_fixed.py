"""On-policy distillation: a student learns on what it sampled itself."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
ROLLOUTS, BATCH, MICRO = 3, 16, 8


class LM(nn.Module):
    def __init__(self, vocab=25, size=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


@torch.no_grad()
def rollout(model, length=8):
    ids = torch.randint(25, (BATCH, 1))
    for _ in range(length):
        ids = torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1)], 1)
    return ids


def linear_decay(optimizer, num_training_steps):
    return LambdaLR(optimizer, lambda s: max(0.0, 1 - s / num_training_steps))


student, teacher = LM(), LM().requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
scheduler = linear_decay(optimizer, ROLLOUTS * (BATCH // MICRO))
rates = []
for number in range(ROLLOUTS):
    ids = rollout(student)
    for batch in ids.split(MICRO):
        log_p = student(batch[:, :-1]).log_softmax(-1)
        log_q = teacher(batch[:, :-1]).log_softmax(-1)
        loss = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        print(number, loss.item(), "lr", rates[-1])
