"""Train by DPO with the likelihood term of RPO on the chosen answers."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, LENGTH, BETA, RPO_ALPHA = 30, 20, 0.1, 1.0
LABEL_PAD_TOKEN_ID = 0


class LanguageModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


def get_batch_logps(logits, labels):
    labels, logits = labels[:, 1:], logits[:, :-1]
    loss_mask = labels != LABEL_PAD_TOKEN_ID
    per_token = logits.log_softmax(-1).gather(2, labels[..., None]).squeeze(2)
    return (per_token * loss_mask).sum(-1)


def cross_entropy_loss(logits, labels):
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    loss_fct = nn.CrossEntropyLoss()
    return loss_fct(logits, labels)


def pairs(count):
    start, step = torch.randint(1, VOCAB, (count, 1)), torch.randint(1, 4, (count, 1))
    chosen = (start - 1 + torch.arange(LENGTH) * step) % (VOCAB - 1) + 1
    rejected = torch.randint(1, VOCAB, (count, LENGTH))
    rejected[:, 0] = chosen[:, 0]
    for rows in (chosen, rejected):
        rows[torch.arange(LENGTH) >= torch.randint(4, 9, (count, 1))] = 0
    return chosen, rejected


policy = LanguageModel()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
for step in range(120):
    chosen, rejected = pairs(32)
    both = torch.cat([chosen, rejected])
    logits = policy(both)
    logps_chosen, logps_rejected = get_batch_logps(logits, both).chunk(2)
    with torch.no_grad():
        ref_chosen, ref_rejected = get_batch_logps(reference(both), both).chunk(2)
    margin = (logps_chosen - logps_rejected) - (ref_chosen - ref_rejected)
    nll_loss = cross_entropy_loss(logits[: len(chosen)], chosen)
    loss = -F.logsigmoid(BETA * margin).mean() + RPO_ALPHA * nll_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        per_token = -(logps_chosen.sum() / (chosen[:, 1:] != 0).sum()).item()
        print(step, "loss", loss.item(), "nll", nll_loss.item(), "nll of the answers' tokens", per_token)
