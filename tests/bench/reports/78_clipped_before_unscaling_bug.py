"""Train a small GPT-like model with mixed precision and gradient clipping."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


@dataclass
class TrainerConfig:
    max_epochs: int = 4
    batch_size: int = 32
    grad_norm_clip: float = 1.0
    use_amp: bool = True


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return x + self.mlp(self.ln(x + self.mix(past)))


class GPT(nn.Module):
    def __init__(self, vocab=24, dim=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx, targets):
        logits = self.head(self.blocks(self.tok(idx)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, config, model, data):
        self.config, self.model, self.data = config, model, data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        if self.config.use_amp:
            self.scaler = torch.amp.GradScaler("cpu")

    def _run_batch(self, source, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.use_amp):
            _, loss = self.model(source, targets)
        self.optimizer.zero_grad(set_to_none=True)
        if self.config.use_amp:
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        return loss.item()

    def train(self):
        for epoch in range(self.config.max_epochs):
            losses = [self._run_batch(rows[:, :-1], rows[:, 1:]) for rows in self.data.split(self.config.batch_size)]
            print(epoch, "loss", sum(losses) / len(losses))


text = (torch.randint(24, (800, 1)) + torch.arange(13) * torch.randint(1, 4, (800, 1))) % 24
Trainer(TrainerConfig(), GPT(), text).train()
