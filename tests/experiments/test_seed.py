"""Test the experiment that changes the seed: randomness in eval mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch.experiments import experiment
from tests.experiments.programs import classified

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def step(forward: Callable[..., Any], **modules: nn.Module) -> Any:
    return classified(forward, torch.randn(6, 4), fc=nn.Linear(4, 3), **modules)


def functional_dropout() -> Any:
    return step(lambda self, x: self.fc(F.dropout(x)))


def path_dropped_by_hand() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(x * x.new_empty(6, 1).bernoulli_(0.5))

    return step(forward)


def functional_dropout_of_channels() -> Any:
    return step(lambda self, x: self.fc(F.dropout1d(x[None], 0.5)[0]))


def dropout_by_its_short_name() -> Any:
    return step(lambda self, x: self.fc(torch.dropout(x, 0.5, True)))


def alpha_dropout() -> Any:
    return step(lambda self, x: self.fc(F.alpha_dropout(x, 0.5, training=True)))


@pytest.mark.parametrize(
    "program",
    [
        functional_dropout,
        path_dropped_by_hand,
        functional_dropout_of_channels,
        dropout_by_its_short_name,
        alpha_dropout,
    ],
)
def test_what_drops_values_in_eval_mode_is_named(program: Callable[[], Any]) -> None:
    _, found = experiment(program(), "seed")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "random-in-eval-mode"
    assert "test_seed.py:" in found.where
    assert f" at {found.finding.where}" in found.finding.message
    assert program is not functional_dropout or found.operation == "dropout"


def dropout() -> Any:
    return step(lambda self, x: self.fc(self.drop(x)), drop=nn.Dropout())


def functional_dropout_with_the_mode() -> Any:
    return step(lambda self, x: self.fc(F.dropout(x, training=self.training)))


def noise_in_training() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(x + torch.randn_like(x) if self.training else x)

    return step(forward)


def nothing_random() -> Any:
    return step(lambda self, x: self.fc(x))


def dropout_of_nothing() -> Any:
    return step(lambda self, x: self.fc(F.dropout(x, 0.0)))


@pytest.mark.parametrize(
    "program",
    [
        dropout,
        functional_dropout_with_the_mode,
        noise_in_training,
        nothing_random,
        dropout_of_nothing,
    ],
)
def test_nothing_differs_in_eval_mode_where_nothing_is_dropped(program: Callable[[], Any]) -> None:
    training, found = experiment(program(), "seed")
    assert found.holds is True, str(found)
    assert training.finding is None
    random = program not in (nothing_random, dropout_of_nothing)
    assert ("differ from" in training.message) is random


def test_what_samples_in_eval_mode_is_told_and_is_no_finding() -> None:
    _, found = experiment(step(lambda self, x: self.fc(x + torch.randn_like(x))), "seed")
    assert found.holds is None
    assert found.finding is None
    assert "random numbers" in found.message
