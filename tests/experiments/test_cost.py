"""Count how often each experiment computes a model, with a kernel of the model's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import _scoped_library

from graphviz_torch import record
from graphviz_torch.experiments import experiment

pytestmark = pytest.mark.usefixtures("the_same_numbers")


@pytest.fixture
def counts() -> Iterator[list[int]]:
    """The number of rows of each call of `torch.ops.counting.same`."""
    found: list[int] = []

    def same(x: Tensor) -> Tensor:
        found.append(len(x))
        return x.clone()

    with _scoped_library("counting", "DEF") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", same, "CPU")
        yield found


class Net(nn.Module):
    """A model with two inputs, and dropout before the counted kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        dropped = F.dropout(x + y)
        return self.fc(dropped + torch.ops.counting.same(dropped.detach()))


@pytest.mark.parametrize(
    ("name", "times"),
    [("sample", 2), ("seed", 2), ("inputs", 3), ("float64", 2), ("memory_order", 3)],
)
def test_an_experiment_computes_the_model_at_most_three_times(
    counts: list[int], name: str, times: int
) -> None:
    with record(experiments=True) as recording:
        output = Net()(torch.randn(6, 4), torch.randn(6, 4))
        F.cross_entropy(output, torch.arange(6) % 3).backward()
    counts.clear()
    experiment(recording, name)
    assert counts == [6] * times
