"""Inputs and targets of different rows of the data, and similar programs without a mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent

X, Y = torch.randn(64, 4), torch.randn(64)
STARTS = range(0, 64, 16)


def train(record: Record, choose: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> None:
    """Train with the inputs and targets that are chosen from a permutation and a first row."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.randperm(64)
    with record(model):
        for start in STARTS:
            x, y = choose(order, start)
            step(optimizer, F.mse_loss(model(x)[:, 0], y))


@says("unpaired-rows", "In 4 steps", advice="x[index] and y[index]")
def permutation_of_the_inputs_alone(record: Record) -> None:
    train(record, lambda order, i: (X[order[i : i + 16]], Y[i : i + 16]))


@says("unpaired-rows")
def two_random_batches(record: Record) -> None:
    train(record, lambda order, i: (X[torch.randint(64, (16,))], Y[torch.randint(64, (16,))]))


@says("unpaired-rows")
def permutation_of_the_targets_alone(record: Record) -> None:
    train(record, lambda order, i: (X[i : i + 16], Y.index_select(0, order[i : i + 16])))


@silent("unpaired-rows")
def permutation_of_both(record: Record) -> None:
    train(record, lambda order, i: (X[order[i : i + 16]], Y[order[i : i + 16]]))


@silent("unpaired-rows")
def index_that_is_no_permutation(record: Record) -> None:
    train(record, lambda order, i: (X[torch.arange(i, i + 16)], Y[i : i + 16]))


@silent("unpaired-rows")
def forecast_of_a_later_row(record: Record) -> None:
    def choose(order: Tensor, start: int) -> tuple[Tensor, Tensor]:
        index = order[start : start + 16].clamp(max=60)
        return X[index], Y[index + 3]

    train(record, choose)


@silent("unpaired-rows")
def labels_beside_data_without_labels(record: Record) -> None:
    unlabeled = torch.randn(64, 4)

    def choose(order: Tensor, start: int) -> tuple[Tensor, Tensor]:
        x = X[order[start : start + 16]] + 0.1 * unlabeled[torch.randint(64, (16,))].mean()
        return x, Y[order[start : start + 16]]

    train(record, choose)


@silent("unpaired-rows")
def labels_that_were_permuted_once(record: Record) -> None:
    labels = Y[torch.randperm(64)]
    train(record, lambda order, i: (X[order[i : i + 16]], labels[order[i : i + 16]]))
