"""Straight-through estimators in the wrong order, and similar programs without a mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent


def estimate(record: Record, quantize: Callable[[Tensor], Tensor]) -> None:
    model = nn.Linear(4, 4)
    with record(model):
        quantize(model(torch.randn(8, 4))).square().mean().backward()


@says("reversed-estimator", "2 x - q", advice="x + (q - x).detach()")
def difference_of_the_wrong_sign(record: Record) -> None:
    def quantize(x: Tensor) -> Tensor:
        q = torch.round(x * 4) / 4
        return x + (x - q).detach()  # cause

    estimate(record, quantize)


@says("reversed-estimator", "2 x - q")
def difference_that_is_subtracted(record: Record) -> None:
    estimate(record, lambda x: x - (x.sign() - x).detach())


@says("reversed-estimator", "opposite of its gradient")
def quantized_value_with_the_negative_gradient(record: Record) -> None:
    estimate(record, lambda x: torch.floor(x) - x + x.detach())


@says("reversed-estimator", "2 x - q")
def nearest_codes_of_the_wrong_sign(record: Record) -> None:
    codes = nn.Embedding(5, 4)

    def quantize(x: Tensor) -> Tensor:
        q = codes(torch.cdist(x, codes.weight).argmin(1))
        return (x - q).detach() + x

    estimate(record, quantize)


@silent("reversed-estimator")
def estimator(record: Record) -> None:
    estimate(record, lambda x: x + (torch.round(x) - x).detach())


@silent("reversed-estimator")
def estimator_by_a_subtraction(record: Record) -> None:
    estimate(record, lambda x: x - (x - torch.round(x)).detach())


@silent("reversed-estimator")
def estimator_of_the_value_without_the_input(record: Record) -> None:
    estimate(record, lambda x: torch.round(x) - x.detach() + x)


@silent("reversed-estimator")
def extrapolation(record: Record) -> None:
    previous = torch.randn(8, 4)
    estimate(record, lambda x: x + (x - previous).detach())


@silent("reversed-estimator")
def noise_around_a_value(record: Record) -> None:
    estimate(record, lambda x: x + (x - x.mean(0, keepdim=True).expand(8, 4)).detach())


@silent("reversed-estimator")
def extrapolation_of_embedded_tokens(record: Record) -> None:
    embedding, layer = nn.Embedding(9, 4), nn.Linear(4, 4)
    with record(nn.ModuleList([embedding, layer])):
        before = embedding(torch.arange(9)).relu()
        x = layer(before)
        (x + (x - before).detach()).square().mean().backward()
