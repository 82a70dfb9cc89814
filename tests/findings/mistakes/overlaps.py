"""Dice and IoU losses with a mistake, their variants, and similar losses without one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent

Loss = Callable[[Tensor, Tensor], Tensor]

PIXELS = (1, 2, 3)


def convolution(classes: int = 1) -> nn.Conv2d:
    return nn.Conv2d(3, classes, 3, padding=1)


def batch(classes: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 3, 8, 6)
    return x, (x.sum(1, keepdim=True) > torch.arange(classes).view(1, -1, 1, 1)).float()


def train(record: Record, loss: Loss, classes: int = 1, *, maximize: bool = False) -> None:
    model = convolution(classes)
    with record(model):
        x, target = batch(classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
        step(optimizer, loss(model(x), target))


@says("overlap-loss", "raw scores", advice="sigmoid")
def dice_of_scores(record: Record) -> None:
    model = convolution()
    with record(model):
        x, target = batch()
        scores = model(x).flatten(1)
        target = target.flatten(1)
        intersection = (target * scores).sum(-1)
        overlap = 2 * intersection / (scores.square().sum(-1) + target.sum(-1) + 1e-6)  # cause
        (1 - overlap).mean().backward()


@says("overlap-loss", "raw scores")
def negative_dice_of_scores_with_a_least_denominator(record: Record) -> None:
    model = convolution()
    with record(model):
        x, target = batch()
        scores = model(x)
        size = scores.sum((2, 3)) + target.sum((2, 3))
        overlap = (2 * (scores * target).sum((2, 3)) + 1e-5) / size.add(1e-5).clip(1e-8)  # cause
        (-overlap.mean()).backward()


@says("overlap-loss", "the positions", "dimension 3")
def softmax_over_a_row_of_pixels(record: Record) -> None:
    model = convolution(5)
    with record(model):
        x, target = batch(5)
        p = model(x).softmax(3)  # cause
        overlap = 2 * (p * target).mean((2, 3)) / (p + target).mean((2, 3))
        (1 - overlap.mean()).backward()


@says("overlap-loss", "rises with the overlap")
def union_minus_intersection_is_maximized(record: Record) -> None:
    model = convolution()
    optimizer = torch.optim.Adam(model.parameters())
    with record(model):
        x, target = batch()
        p = model(x).sigmoid()
        iou = (p * target).sum() / (p + target - p * target).sum()  # cause
        step(optimizer, iou)


@says("overlap-loss", "rises with the overlap")
def soft_f1_is_minimized(record: Record) -> None:
    model = convolution()
    with record(model):
        x, target = batch()
        p = model(x).sigmoid()
        hits, wrong, missed = (p * target).sum(), (p * (1 - target)).sum(), ((1 - p) * target).sum()
        f1 = 2 * hits / (2 * hits + wrong + missed)  # cause
        (0.3 * f1).backward()


@says("overlap-loss", "is 2 for a perfect prediction")
def dice_over_the_union(record: Record) -> None:
    model = convolution()
    with record(model):
        x, target = batch()
        p = model(x).sigmoid()
        shared = (p * target).sum()
        overlap = (2 * shared + 1) / (p.sum() + target.sum() - shared + 1)  # cause
        (1 - overlap).backward()


@silent("overlap-loss")
def factor_behind_the_quotient(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.sigmoid()
        return 1 - 2 * ((p * target).sum(PIXELS) / (p * p + target * target).sum(PIXELS)).mean()

    train(record, loss)


@silent("overlap-loss")
def negative_overlap_of_any_scale(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.sigmoid()
        return -((p * target).sum() / (p.sum() + target.sum()))

    train(record, loss)


@silent("overlap-loss")
def logarithm_of_dice(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.softmax(1)
        overlap = 2 * (p * target).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + target.sum((0, 2, 3)) + 1)
        return (-overlap.log() * torch.tensor([0.5, 1.0, 2.0])).pow(0.5).mean()

    train(record, loss, 3)


@silent("overlap-loss")
def tversky(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.sigmoid()
        hits, wrong, missed = (p * target).sum(), (p * (1 - target)).sum(), ((1 - p) * target).sum()
        return (1 - hits / (hits + 0.3 * wrong + 0.7 * missed + 1)) ** 0.75

    train(record, loss)


@silent("overlap-loss")
def optimizer_that_maximizes(record: Record) -> None:
    def reward(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.sigmoid()
        return (p * target).sum() / (p + target - p * target).sum()

    train(record, reward, maximize=True)


@silent("overlap-loss")
def share_of_a_region_that_the_prediction_avoids(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        p = scores.sigmoid()
        return (p * target).sum() / (p.sum() + 1)

    train(record, loss)


@silent("overlap-loss")
def weighted_mean_of_scores(record: Record) -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return (scores * target).sum() / (target.sum() + scores.square().sum().sqrt())

    train(record, loss)
