"""Similarities that a contrastive loss compares, with a wrong scale or with themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.formulas import learn
from tests.findings.mistakes.rows import says, silent


def match(record: Record, scores: Callable[[Tensor, Tensor], Tensor], normal: bool = True) -> None:
    """A step of a contrastive loss between two views of each sample."""
    encoder = nn.Linear(8, 32)

    def loss() -> Any:
        views = encoder(torch.randn(16, 8)), encoder(torch.randn(16, 8))
        one, other = (F.normalize(view, dim=1) if normal else view for view in views)
        found = scores(one, other)
        return F.cross_entropy(found, torch.arange(len(found)))

    learn(record, encoder, loss)


@says("score-scale", "between -0.07 and 0.07", "fall below 2.64", severity="warning")
def similarity_times_its_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T * 0.07)


@says("score-scale", "between -1 and 1 from tanh", "fall below 1.11", severity="info")
def tanh_before_a_cross_entropy(record: Record) -> None:
    match(record, lambda one, other: torch.tanh(one @ other.T), normal=False)


@says("score-scale", "between -0.1 and 0.1", "binary_cross_entropy_with_logits")
def similarity_of_pairs_without_a_scale(record: Record) -> None:
    encoder = nn.Linear(8, 4)

    def loss() -> Any:
        views = encoder(torch.randn(16, 8)), encoder(torch.randn(16, 8))
        one, other = (F.normalize(view, dim=1) for view in views)
        scores = (one * other).sum(1) * 0.1
        return F.binary_cross_entropy_with_logits(scores, torch.ones(16))

    learn(record, encoder, loss)


@says("score-scale", "divided by 0.05", "not normalized", severity="info")
def products_with_a_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T / 0.05, normal=False)


@silent("score-scale", "compared-with-itself")
def similarity_divided_by_its_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T / 0.07)


@silent("score-scale")
def similarity_divided_by_a_large_temperature(record: Record) -> None:
    """As in SimCLR on small images: many samples keep the loss from falling below 2.34."""
    encoder = nn.Linear(8, 32)

    def loss() -> Any:
        views = F.normalize(encoder(torch.randn(512, 8)), dim=1)
        others = (views @ views.T / 0.5).masked_fill(torch.eye(512, dtype=torch.bool), -math.inf)
        return F.cross_entropy(others, torch.arange(512).roll(256))

    learn(record, encoder, loss)


@silent("score-scale")
def similarity_with_a_learned_scale(record: Record) -> None:
    """As in CLIP."""
    encoder, scale = nn.Linear(8, 4), nn.Parameter(torch.zeros(()))
    encoder.register_parameter("scale", scale)

    def loss() -> Any:
        one = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        other = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        return F.cross_entropy(one @ other.T * scale.exp(), torch.arange(16))

    learn(record, encoder, loss)


@silent("score-scale")
def products_without_a_temperature(record: Record) -> None:
    """As in contrastive predictive coding."""
    match(record, lambda one, other: one @ other.T, normal=False)


@silent("score-scale")
def tanh_that_bounds_large_scores(record: Record) -> None:
    """As of a pointer network."""
    match(record, lambda one, other: 10 * torch.tanh(one @ other.T), normal=False)


@silent("score-scale")
def tanh_before_two_classes(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    learn(record, model, lambda: F.cross_entropy(model(torch.randn(16, 4)), torch.arange(16) % 2))


@silent("score-scale")
def classes_with_a_temperature(record: Record) -> None:
    """As of a sharp student: a layer computes the scores, not a product of two results."""
    model = nn.Linear(4, 3)
    learn(
        record,
        model,
        lambda: F.cross_entropy(model(torch.randn(16, 4)) / 0.1, torch.arange(16) % 3),
    )


@says("compared-with-itself", "itself included", advice="-inf")
def similarities_with_their_diagonal(record: Record) -> None:
    def scores(one: Tensor, other: Tensor) -> Tensor:
        both = torch.cat((one, other))
        return both @ both.T / 0.1

    match(record, scores)


@says("compared-with-itself", "itself included")
def similarities_of_one_view(record: Record) -> None:
    match(record, lambda one, other: one @ one.T / 0.1)  # cause


@silent("compared-with-itself")
def similarities_without_their_diagonal(record: Record) -> None:
    def scores(one: Tensor, other: Tensor) -> Tensor:
        both = torch.cat((one, other))
        return (both @ both.T / 0.1).masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)

    match(record, scores)


@silent("compared-with-itself")
def similarities_less_a_large_diagonal(record: Record) -> None:
    match(record, lambda one, other: one @ one.T / 0.1 - 1e9 * torch.eye(len(one)))


@silent("compared-with-itself")
def attention_to_every_position(record: Record) -> None:
    """Its scores are a softmax in the middle of a model."""
    model = nn.Linear(8, 4)

    def loss() -> Any:
        x = model(torch.randn(16, 8))
        return ((x @ x.T).softmax(-1) @ x).square().mean()

    learn(record, model, loss)
