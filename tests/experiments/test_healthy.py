"""Test that no experiment reports anything in healthy trainings of the corpus."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from graphviz_torch import record
from graphviz_torch.experiments import experiment
from tests.findings.corpus import tables
from tests.findings.corpus.cases import HEALTHY

assert tables  # full

# It is worth knowing that a loss is a sum. It is not a mistake.
SUMS = {"variational_autoencoder_of_images"}
# They call no module that has parameters with gradients on, or call it inside vmap.
NOT_RUN_AGAIN = {
    "linear_regression_by_hand",
    "learned_noise_with_rsample",
    "ensemble_by_vmap",
    "ensemble_of_one_architecture",
    "second_order_fit_with_a_line_search",
    "gradients_that_lie_where_backward_writes_them",
}


class Recorder:
    """A replacement for `record`, which keeps what experiments need."""

    def __init__(self) -> None:
        self.recordings: list[Any] = []

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.recordings.append(record(*args, **(options | {"experiments": True})))
        return self.recordings[-1]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_experiment_finds_anything_in_a_healthy_training(name: str) -> None:
    torch.manual_seed(0)
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        HEALTHY[name](recorder)
    known = [each for each in recorder.recordings if each.first_call is not None]
    assert bool(known) is (name not in NOT_RUN_AGAIN)
    for recording in known:
        found = experiment(recording)
        rules = [each.rule for each in found.findings]
        assert rules == (["sum-loss"] if name in SUMS else []), str(found)
