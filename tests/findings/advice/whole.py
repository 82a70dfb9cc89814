"""Advice on tensors compared with themselves, first losses, references and derivatives."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp


@follows("compared-with-itself", "Take the other part", same_loss=False)
def halves_of_a_batch(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))
        first = z[:8]
        second = z[8:] if followed else z[:8]
        loss = F.cross_entropy(first @ second.T, torch.arange(8))
        loss.backward()
    return loss


@follows("loss-above-guess", "with a smaller standard deviation", same_loss=False)
def wide_head(record: Record, followed: bool) -> Tensor:
    head = nn.Linear(64, 5)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), head)
    nn.init.normal_(head.weight, std=0.1 if followed else 20.0)
    optimizer = SGD(model.parameters(), lr=1e-4)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(32, 6)), torch.arange(32) % 5)
        step(optimizer, loss)
    return loss


@follows("reference-is-the-model", "use a frozen copy", same_loss=False)
def preference_of_one_model(record: Record, followed: bool) -> Tensor:
    policy = mlp()
    reference = copy.deepcopy(policy).requires_grad_(False) if followed else policy
    optimizer = SGD(policy.parameters(), lr=0.5)
    with record(policy):
        for _ in range(4):
            x, chosen = torch.randn(8, 6), torch.arange(8)[:, None] % 3
            with torch.no_grad():
                before = reference(x).log_softmax(-1).gather(1, chosen)
            after = policy(x).log_softmax(-1).gather(1, chosen)
            loss: Tensor = -F.logsigmoid(after - before).mean()
            step(optimizer, loss)
    return loss


@follows("derivative-without-graph", "Pass create_graph=True")
def residual_of_an_equation(record: Record, followed: bool) -> Tensor:
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(net.parameters(), lr=0.1)
    with record(net):
        t = torch.rand(16, 1, requires_grad=True)
        u = net(t)
        (du,) = torch.autograd.grad(u.sum(), t, retain_graph=True, create_graph=followed)
        loss = (u + du).square().mean()
        step(optimizer, loss)
    return loss


@follows("incomplete-derivative", "Remove the detach", same_loss=False)
def force_of_a_descriptor(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model):
        x = torch.randn(16, 1, requires_grad=True)
        squares = x.square() if followed else x.square().detach()
        energy = model(torch.cat([x, squares], 1))
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        loss: Tensor = force.square().mean() + energy.square().mean()
        loss.backward()
    return loss


@follows("unused-derivative-input", "Pass weight to autograd.grad")
def step_of_each_row(record: Record, followed: bool) -> Tensor:
    weight = nn.Parameter(torch.ones(3, 4))
    x = torch.randn(8, 4)
    with record():
        loss: Tensor = (x @ weight.T).square().mean()
        if followed:
            torch.autograd.grad(loss, weight, retain_graph=True)
        else:
            for row in weight:
                torch.autograd.grad(loss, row, retain_graph=True, allow_unused=True)
        loss.backward()
    return loss


@follows("unused-loss", "Add balance_loss to the loss", same_loss=False)
def balance_that_is_printed(record: Record, followed: bool) -> Tensor:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            scores = model(torch.randn(8, 6))
            loss = F.cross_entropy(scores, torch.arange(8) % 3)
            balance_loss = scores.softmax(-1).mean(0).square().sum()
            loss = loss + balance_loss if followed else loss
            step(optimizer, loss)
            print(balance_loss.item())
    return loss


@follows("constant-term", "Add the tensors themselves", same_loss=False)
def penalty_as_a_number(record: Record, followed: bool) -> Tensor:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            y = model(torch.randn(8, 6))
            penalty = y.abs().mean() if followed else y.abs().mean().item()
            loss: Tensor = y.square().mean() + penalty
            step(optimizer, loss)
    return loss
