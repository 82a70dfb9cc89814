"""Pixels that were not scaled, and similar inputs that are meant."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

PIXELS = torch.randint(256, (4, 3, 8, 8)).float()


def train(record: Record, model: nn.Module, x: Tensor) -> None:
    with record(model):
        model(x).square().mean().backward()


@says("unscaled-pixels", "whole numbers up to 2", severity="info", advice="255")
def pixels_of_a_flat_image(record: Record) -> None:
    train(record, nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), PIXELS)


@silent("unscaled-pixels")
def pixels_from_0_to_1(record: Record) -> None:
    train(record, nn.Conv2d(3, 2, 3), PIXELS / 255)


@silent("unscaled-pixels")
def pixels_without_their_mean(record: Record) -> None:
    train(record, nn.Conv2d(3, 2, 3), PIXELS - 128)


@silent("unscaled-pixels")
def pixels_before_a_norm(record: Record) -> None:
    train(record, nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 3)), PIXELS)


@silent("unscaled-pixels")
def one_hot_features(record: Record) -> None:
    train(record, nn.Linear(96, 2), nn.functional.one_hot(torch.arange(96) % 7, 96).float())
