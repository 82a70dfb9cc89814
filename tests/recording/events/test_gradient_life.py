"""Test the events about clipping and clearing gradients, and about optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from graphviz_torch import Graph, record
from graphviz_torch.findings.rules.training import MixedLosses
from graphviz_torch.graph.events import GradientClip, OptimizerStep


def clips(graph: Graph) -> list[tuple[str, str, int]]:
    """Return the function, the moment and the number of calls of each clip."""
    found = (event for event in graph.events if isinstance(event, GradientClip))
    return [(event.function, event.moment, event.times) for event in found]


def steps(graph: Graph) -> list[tuple[str, int, int]]:
    """Return for each optimizer its name, its number of foreign parameters, and its steps."""
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
        (
            "backward norm backward norm step",
            [("clip_grad_norm_", "in time", 1), ("clip_grad_norm_", "each backward", 1)],
        ),
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


LIBRARY = """\
def zeroed(parameters):
    for parameter in parameters:
        parameter.grad.zero_()
"""


def in_a_library() -> Callable[..., None]:
    """Return a function whose code is in a file next to PyTorch's."""
    path, found = Path(torch.__file__).parents[1] / "a_library" / "optim.py", dict[str, Any]()
    exec(compile(LIBRARY, str(path), "exec"), found)
    return found["zeroed"]  # type: ignore[no-any-return]


class Players:
    """Two networks with an optimizer each. A word of a program is a line of its own."""

    def __init__(self) -> None:
        self.maker, self.judge = nn.Linear(3, 3), nn.Linear(3, 1)
        self.first = torch.optim.SGD(self.maker.parameters(), lr=0.1)
        self.second = torch.optim.SGD(self.judge.parameters(), lr=0.1)

    def loss(self) -> torch.Tensor:
        return self.judge(self.maker(torch.ones(2, 3))).sum()

    def run(self, program: str) -> Graph:
        doing: dict[str, Callable[[], object]] = {
            "judged": lambda: self.loss().backward(),
            "fooled": lambda: (-self.loss()).backward(),
            "own": lambda: self.maker(torch.ones(2, 3)).sum().backward(),
            "first": lambda: self.first.step(),
            "second": lambda: self.second.step(),
            "clear": lambda: self.maker.zero_grad(),
            "zero": lambda: in_a_library()(self.maker.parameters()),
            "read": lambda: [parameter.grad for parameter in self.maker.parameters()],
        }
        self.lines = {
            f"{Path(__file__).name}:{f.__code__.co_firstlineno}": w for w, f in doing.items()
        }
        with record(nn.ModuleDict({"maker": self.maker, "judge": self.judge})) as recording:
            for word in program.split():
                doing[word]()
        return recording.graph


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("judged second fooled first", [("judged", "fooled", "first", 1)]),
        ("judged second judged first", []),
        ("judged fooled second judged first", []),
        ("judged fooled first second", []),
        ("judged second clear fooled first", []),
        ("judged second fooled clear first", []),
        ("judged second zero fooled first", []),
        ("judged second read fooled first", []),
        ("judged second fooled read first", []),
        (
            "judged second fooled first judged second first",
            [("judged", "fooled", "first", 1), ("fooled", "judged", "second", 1)],
        ),
        (
            "judged first fooled second judged first",
            [("judged", "fooled", "second", 1), ("fooled", "judged", "first", 1)],
        ),
        ("own judged second own first", [("judged", "own", "first", 1)]),
        ("own second fooled first", []),
    ],
)
def test_a_step_with_what_another_optimizers_loss_left_is_noted(
    program: str, expected: list[tuple[str, str, str, int]]
) -> None:
    players = Players()
    graph = players.run(program)
    found = [each for each in graph.events if isinstance(each, MixedLosses)]
    assert not any(node.note for node in graph.nodes)  # "not recorded: ..."
    lines = [tuple(map(players.lines.get, (f.where, f.second, f.stepped))) for f in found]
    assert [(*line, f.times) for line, f in zip(lines, found, strict=True)] == expected


def test_shards_that_are_clipped_between_backward_and_step_are_clipped_in_time() -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        training = Training()
        fully_shard(training.model)
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
        healthy = training.run("backward norm step clear backward norm step")
        late = training.run("clear backward step norm")
    finally:
        dist.destroy_process_group()
    assert "after the step" not in [moment for _, moment, _ in clips(healthy)]
    assert clips(late) == [("clip_grad_norm_", "after the step", 1)]
