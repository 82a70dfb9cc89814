"""What is noted of clipping and clearing gradients, and of optimizers that step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from graphviz_torch import Graph, record


def events(graph: Graph, kind: str) -> list[tuple[str, str, int]]:
    """Operation or label, detail and number of those of a kind."""
    return [(e.operation or e.label, e.detail, e.times) for e in graph.events if e.kind == kind]


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
        ("norm backward step", [("clip_grad_norm_", "nothing", 1)]),
    ],
)
def test_clipping_is_noted_once_for_each_backward_and_each_step(
    program: str, expected: list[tuple[str, str, int]]
) -> None:
    assert events(Training().run(program), "clip") == expected


@pytest.mark.parametrize(("learns", "expected"), [(False, "2"), (True, "0")])
def test_a_step_tells_how_many_parameters_without_a_gradient_the_model_does_not_have(
    learns: bool, expected: str
) -> None:
    training, other = Training(), nn.Linear(2, 1)
    if learns:
        other(torch.ones(1, 2)).sum().backward()
    parameters = [*training.model.parameters(), *other.parameters()]
    training.optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert events(training.run("backward step"), "step") == [("SGD", expected, 1)]


def test_a_step_of_another_model_has_no_parameter_of_this_one() -> None:
    training, other = Training(), Training()
    other.run("backward")
    training.optimizer = other.optimizer
    assert events(training.run("backward step"), "step") == [("SGD", "4", 1)]
