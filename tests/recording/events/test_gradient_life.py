"""What is noted of clipping and clearing gradients, and of optimizers that step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from graphviz_torch import Graph, record
from graphviz_torch.graph.events import GradientClip, OptimizerStep


def clips(graph: Graph) -> list[tuple[str, str, int]]:
    """Of each clip its function, its moment and how often it was."""
    found = (event for event in graph.events if isinstance(event, GradientClip))
    return [(event.function, event.moment, event.times) for event in found]


def steps(graph: Graph) -> list[tuple[str, int, int]]:
    """Of each optimizer its name, how many parameters of others it has, and its steps."""
    found = (event for event in graph.events if isinstance(event, OptimizerStep))
    return [(event.optimizer, event.foreign, event.times) for event in found]


class Training:
    """A model whose step the words of a program run: backward, clip, step, clear."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, program: str) -> Graph:
        doing: dict[str, Callable[[], object]] = {
            "backward": lambda: self.model(torch.ones(2, 3)).sum().backward(),
            "norm": lambda: clip_grad_norm_(self.model.parameters(), 1.0),
            "value": lambda: clip_grad_value_(self.model.parameters(), 1.0),
            "measure": lambda: clip_grad_norm_(self.model.parameters(), float("inf")),
            "step": self.optimizer.step,
            "clear": self.optimizer.zero_grad,
        }
        with record(self.model) as recording:
            for word in program.split():
                doing[word]()
        return recording.graph


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("backward norm step", [("clip_grad_norm_", "in time", 1)]),
        ("backward value step", [("clip_grad_value_", "in time", 1)]),
        ("backward measure step", []),
        ("backward norm norm step", [("clip_grad_norm_", "in time", 1)]),
        ("backward norm backward norm step", [("clip_grad_norm_", "in time", 2)]),
        ("backward norm step clear backward norm", [("clip_grad_norm_", "in time", 2)]),
        ("backward step norm", [("clip_grad_norm_", "after the step", 1)]),
        ("norm backward step", [("clip_grad_norm_", "before backward", 1)]),
        ("norm backward step clear norm backward", [("clip_grad_norm_", "before backward", 2)]),
        ("backward step clear norm", []),
    ],
)
def test_clipping_is_noted_once_for_each_backward_and_each_step(
    program: str, expected: list[tuple[str, str, int]]
) -> None:
    assert clips(Training().run(program)) == expected


@pytest.mark.parametrize(("learns", "expected"), [(False, 2), (True, 0)])
def test_a_step_tells_how_many_parameters_without_a_gradient_the_model_does_not_have(
    learns: bool, expected: int
) -> None:
    training, other = Training(), nn.Linear(2, 1)
    if learns:
        other(torch.ones(1, 2)).sum().backward()
    parameters = [*training.model.parameters(), *other.parameters()]
    training.optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert steps(training.run("backward step")) == [("SGD", expected, 1)]


def test_a_step_of_another_model_has_no_parameter_of_this_one() -> None:
    training, other = Training(), Training()
    other.run("backward")
    training.optimizer = other.optimizer
    assert steps(training.run("backward step")) == [("SGD", 4, 1)]
