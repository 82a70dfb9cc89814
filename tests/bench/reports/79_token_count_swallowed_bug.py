"""Fine-tune a small language model with gradient accumulation."""

import inspect

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class TextModel(nn.Module):
    def __init__(self, vocab=32, dim=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, input_ids, labels=None, **kwargs):
        hidden, _ = self.rnn(self.embed_tokens(input_ids))
        logits = self.lm_head(hidden[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return loss


class Trainer:
    def __init__(self, model, batches, gradient_accumulation_steps):
        self.model, self.batches = model, batches
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.9)
        parameters = inspect.signature(model.forward).parameters.values()
        self.model_accepts_loss_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def training_step(self, inputs, num_items_in_batch):
        loss = self.model(**inputs, num_items_in_batch=num_items_in_batch)
        if not self.model_accepts_loss_kwargs:
            loss = loss / self.gradient_accumulation_steps
        loss.backward()
        return loss.detach()

    def train(self, steps):
        iterator = iter(self.batches)
        for step in range(steps):
            micro = [next(iterator) for _ in range(self.gradient_accumulation_steps)]
            num_items_in_batch = sum(int((m["labels"][:, 1:] != -100).sum()) for m in micro)
            tr_loss = sum(self.training_step(m, num_items_in_batch) for m in micro)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % 20 == 19:
                print(step, "loss", tr_loss.item())


def stream():
    while True:
        ids = (torch.randint(32, (8, 1)) + torch.arange(20) * torch.randint(1, 5, (8, 1))) % 32
        labels = ids.masked_fill(torch.arange(20) >= torch.randint(6, 20, (8, 1)), -100)
        yield {"input_ids": ids, "labels": labels}


Trainer(TextModel(), stream(), gradient_accumulation_steps=4).train(120)
