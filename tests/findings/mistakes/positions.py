"""Encodings of positions along the wrong dimension, and similar programs without a mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

ENCODING = torch.randn(20, 1, 8)
Encode = Callable[[Tensor], Tensor]


def classify(record: Record, encode: Encode, *others: nn.Module, time_first: bool = False) -> None:
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, head, *others])):
        for _ in range(3):
            x = torch.randn(6, 5, 4)
            h = encode(body(x.transpose(0, 1) if time_first else x)).relu()
            F.cross_entropy(head(h.mean(0 if time_first else 1)), torch.arange(6) % 3).backward()


class Positions(nn.Module):
    """A trained encoding of shape (positions, 1, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = nn.Parameter(torch.randn(20, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.encoding[: x.size(0)]


@says("positions-of-samples", "the first 6 rows", "[6, 5, 8]", advice="x.size(1)")
def encoding_of_another_order_of_dimensions(record: Record) -> None:
    classify(record, lambda h: h + ENCODING[: h.size(0)])


@says("positions-of-samples", "all 5 positions")
def trained_encoding_of_another_order(record: Record) -> None:
    positions = Positions()
    classify(record, positions, positions)


@silent("positions-of-samples")
def encoding_of_the_sequence(record: Record) -> None:
    classify(record, lambda h: h + ENCODING.transpose(0, 1)[:, : h.size(1)])


@silent("positions-of-samples")
def encoding_of_a_sequence_that_comes_first(record: Record) -> None:
    classify(record, lambda h: h + ENCODING[: h.size(0)], time_first=True)


@silent("positions-of-samples")
def trained_encoding_of_a_sequence_that_comes_first(record: Record) -> None:
    positions = Positions()
    classify(record, positions, positions, time_first=True)


@silent("positions-of-samples")
def condition_of_each_sample(record: Record) -> None:
    conditions = torch.randn(18, 1, 8)
    order = iter(range(0, 18, 6))

    def encode(h: Tensor) -> Tensor:
        start = next(order)
        return h + conditions[start : start + 6]

    classify(record, encode)


@silent("positions-of-samples")
def noise_of_each_sample(record: Record) -> None:
    classify(record, lambda h: h + torch.randn(20, 1, 8)[:6])
