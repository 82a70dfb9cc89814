"""Losses that train nothing: computed and never used, or added as numbers."""

from __future__ import annotations

import torch
from torch import nn
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


@says("unused-loss", "balance_loss", "in 3 steps", "trains nothing", severity="warning")
def loss_that_is_only_printed(record: Record) -> None:
    with_balance(record, 0)


@silent("unused-loss")
def a_loss_that_is_used_and_printed(record: Record) -> None:
    with_balance(record, 0.1)


@silent("unused-loss")
def a_loss_that_is_computed_without_gradients(record: Record) -> None:
    with_balance(record, 0, logged=True)


def with_another_loss(record: Record, smoothing: float) -> None:
    """Steps with the hardest samples, or with smoothed labels, that print the usual loss."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            scores, target = model(torch.randn(8, 6)), torch.arange(8) % 3
            if smoothing:
                mean_loss = F.cross_entropy(scores, target)
                step(optimizer, F.cross_entropy(scores, target, label_smoothing=smoothing))
            else:
                losses = F.cross_entropy(scores, target, reduction="none")
                mean_loss = losses.mean()
                step(optimizer, losses.topk(4).values.mean())
            print(mean_loss.item())


@says("unused-loss", "mean_loss", severity="info")
def mean_beside_the_largest_losses(record: Record) -> None:
    with_another_loss(record, 0)


@says("unused-loss", "mean_loss", severity="info")
def loss_without_label_smoothing(record: Record) -> None:
    with_another_loss(record, 0.1)


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


@says("single-row", "one of 8 rows of x and y at {cause}", "in each of 3 steps", severity="warning")
def first_row_of_each_batch(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = torch.randn(8, 6), torch.randn(8, 3)
            step(optimizer, F.mse_loss(model(x[:1]), y[:1]))  # cause


@silent("single-row")
def one_sample_that_is_learned_by_heart(record: Record) -> None:
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, F.mse_loss(model(x[:1]), y[:1]))


@silent("single-row")
def first_rows_that_are_shown(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = torch.randn(8, 6), torch.randn(8, 3)
            step(optimizer, F.mse_loss(model(x), y))
            print(x[0].sum(), y[0].sum())


@silent("single-row")
def samples_one_after_the_other(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = torch.randn(4, 6), torch.randn(4, 3)
            step(optimizer, sum(F.mse_loss(model(x[i]), y[i]) for i in range(4)))


@says("single-row", "one of 8 rows of losses at {cause}", severity="info")
def first_of_the_losses(record: Record) -> None:
    model = mlp()
    with record(model):
        losses = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3, reduction="none")
        losses[0].backward()  # cause


@silent("single-row")
def first_token_of_each_sequence(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        model(torch.randn(8, 5, 6))[:, 0].square().mean().backward()


@silent("single-row")
def last_state_of_a_sequence(record: Record) -> None:
    model = nn.GRU(6, 4)
    with record(model):
        model(torch.randn(5, 8, 6))[0][-1].square().mean().backward()
