"""Losses that train nothing: computed and never used, or added as numbers."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent


def with_balance(record: Record, weight: float, *, logged: bool = False) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            scores = model(torch.randn(8, 6))
            loss = F.cross_entropy(scores, torch.arange(8) % 3)
            with torch.set_grad_enabled(not logged):
                balance_loss = scores.softmax(-1).mean(0).square().sum()
            if weight:
                loss = loss + weight * balance_loss
            step(optimizer, loss)
            print(loss.item(), balance_loss.item())


@says("unused-loss", "balance_loss", "in 3 steps", "trains nothing")
def loss_that_is_only_printed(record: Record) -> None:
    with_balance(record, 0)


@silent("unused-loss")
def a_loss_that_is_used_and_printed(record: Record) -> None:
    with_balance(record, 0.1)


@silent("unused-loss")
def a_loss_that_is_computed_without_gradients(record: Record) -> None:
    with_balance(record, 0, logged=True)


@silent("unused-loss")
def a_validation_loss_with_a_graph_of_its_own(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())
            validation_loss = model(torch.randn(8, 6)).square().mean()
            print(validation_loss.item())


def with_numbers(record: Record, *, as_number: bool, constant: bool = False) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            y = model(torch.randn(8, 6))
            penalty = y.abs().mean()
            value = penalty.item() if as_number else penalty
            step(optimizer, y.square().mean() + 0.1 * (2.0 if constant else value))


@says("constant-term", "is a Python number", "trains nothing")
def penalty_as_a_number(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            y = model(torch.randn(8, 6))
            loss = y.square().mean() + 0.1 * y.abs().mean().item()  # cause
            step(optimizer, loss)


@says("constant-term", "is a Python number", "trains nothing")
def penalty_as_a_number_added_in_place(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            y = model(torch.randn(8, 6))
            loss = y.square().mean()
            loss += float(y.abs().mean())  # cause
            step(optimizer, loss)


@silent("constant-term")
def a_penalty_as_a_tensor(record: Record) -> None:
    with_numbers(record, as_number=False)


@silent("constant-term")
def a_number_that_stays_the_same(record: Record) -> None:
    with_numbers(record, as_number=True, constant=True)
