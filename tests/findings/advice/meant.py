"""Programs with intended cuts, whose findings give no advice."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim import Adam

from tests.findings.advice.rows import meant
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

# --- what is meant: a fact, and no advice --------------------------------------------------------


@meant
def straight_through_codebook(record: Record) -> Tensor:
    encoder, decoder, codes = nn.Linear(6, 4), nn.Linear(4, 6), nn.Embedding(16, 4)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "codes": codes})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        a = encoder(x)
        b = codes(torch.cdist(a, codes.weight).argmin(1))
        loss = F.mse_loss(decoder(a + (b - a).detach()), x)
        step(optimizer, loss)
    return loss


@meant
def baseline_beside_the_log_probability(record: Record) -> Tensor:
    body, policy, value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    model = nn.ModuleDict({"body": body, "policy": policy, "value": value})
    optimizer = Adam(model.parameters())
    with record(model):
        h = body(torch.randn(8, 4)).relu()
        actions = Categorical(logits=policy(h))
        advantage = torch.randn(8) - value(h).squeeze(1).detach()
        loss = -(actions.log_prob(actions.sample()) * advantage).mean()
        step(optimizer, loss)
    return loss


@meant
def teacher_under_no_grad(record: Record) -> Tensor:
    model = nn.ModuleDict({"teacher": mlp(), "student": mlp()})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        with torch.no_grad():
            logits = model["teacher"](x)
        out = model["student"](x)
        loss = F.kl_div(out.log_softmax(1), logits.softmax(1)) + F.mse_loss(out, logits)
        step(optimizer, loss)
    return loss


@meant
def target_network_behind_detach_in_the_optimizer(record: Record) -> Tensor:
    online = mlp(4, 3)
    model = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    optimizer = Adam(model.parameters())
    with record(model):
        q = online(torch.randn(8, 4)).gather(1, torch.randint(3, (8, 1))).squeeze(1)
        best = model["target"](torch.randn(8, 4)).max(1)[0].detach()
        loss = F.mse_loss(q, torch.randn(8) + 0.99 * best)
        step(optimizer, loss)
    return loss


@meant
def base_of_a_lora_in_the_optimizer(record: Record) -> Tensor:
    model = nn.ModuleDict({"base": nn.Linear(6, 6), "a": nn.Linear(6, 2), "b": nn.Linear(2, 6)})
    model["base"].requires_grad_(False)
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        loss = F.mse_loss(model["base"](x) + model["b"](model["a"](x)), torch.randn(8, 6))
        step(optimizer, loss)
    return loss
