"""Temperatures of a student's and a teacher's scores that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.formulas import learn
from tests.findings.mistakes.rows import says, silent


def distill(record: Record, given: float, wanted: float, weight: float = 1.0) -> None:
    """A step of a student, whose scores and those of its teacher are divided by these numbers."""
    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)

    def loss() -> Any:
        x = torch.randn(16, 4)
        with torch.no_grad():
            target = F.softmax(teacher(x) / wanted, dim=-1)
        scores = student(x) / given if given != 1 else student(x)
        return weight * F.kl_div(scores.log_softmax(-1), target, reduction="batchmean")

    learn(record, student, loss)


@says(
    "unequal-temperatures", "log-probabilities is 1, and that of the target is 4", severity="info"
)
def temperature_of_the_teacher_alone(record: Record) -> None:
    distill(record, 1, 4)


@says(
    "unequal-temperatures",
    "log-probabilities is 1, and that of the target is 4",
    severity="warning",
)
def temperature_of_the_teacher_and_its_square(record: Record) -> None:
    distill(record, 1, 4, 16)


@says(
    "unequal-temperatures", "log-probabilities is 4, and that of the target is 1", severity="info"
)
def temperature_of_the_student_alone(record: Record) -> None:
    distill(record, 4, 1)


@says(
    "unequal-temperatures",
    "log-probabilities is 0.5, and that of the target is 2",
    severity="warning",
)
def temperature_that_multiplies_the_target(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4))
        return F.cross_entropy(scores / 0.5, (scores.detach() * 0.5).softmax(-1))

    learn(record, model, loss)


@says("unequal-temperatures", "mul at", "log-probabilities is 0.1, and that of the target is 10")
def temperature_that_multiplies_the_target_of_a_product(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4))
        targets = (scores.detach() * 0.1).softmax(-1)
        return (-targets * (scores / 0.1).log_softmax(-1)).sum(1).mean()

    learn(record, model, loss)


@silent("unequal-temperatures")
def entropy_of_soft_probabilities(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4)) / 4
        return -(scores.softmax(-1) * scores.log_softmax(-1)).sum(1).mean()

    learn(record, model, loss)


@silent("unequal-temperatures")
def temperature_of_both(record: Record) -> None:
    distill(record, 4, 4, 16)


@silent("unequal-temperatures")
def sharp_targets(record: Record) -> None:
    """As in UDA and in DINO."""
    distill(record, 1, 0.4)


@silent("unequal-temperatures")
def sharper_targets_than_scores(record: Record) -> None:
    distill(record, 0.1, 0.04)


@silent("unequal-temperatures")
def smooth_targets(record: Record) -> None:
    """The targets are no softmax of scores."""
    model = nn.Linear(4, 3)
    targets = F.one_hot(torch.arange(16) % 3, 3) * 0.9 + 0.1 / 3
    learn(record, model, lambda: F.cross_entropy(model(torch.randn(16, 4)) / 4, targets))
