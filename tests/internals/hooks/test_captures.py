"""What is captured as a CUDA graph is not watched: a graph of CUDA is stood in for by a class.

What runs between its `capture_begin` and `capture_end` is listed by PyTorch's profiler, which sees
what we compute as well as what the program does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from graphviz_torch import TrainingStep, record, watch
from graphviz_torch.integrations.steps import LoopSteps, due_steps
from graphviz_torch.internals.frames import enter_program, leave_program, programs
from graphviz_torch.internals.hooks.captures import CaptureWatch, is_captured


class Graph:
    """In place of `torch.cuda.CUDAGraph`: lists the operators that run while it is captured."""

    fails = False

    def __init__(self) -> None:
        self.operators: list[str] = []
        self.replays = 0

    def capture_begin(self) -> None:
        if self.fails:
            raise RuntimeError("no capture")
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.__enter__()

    def capture_end(self) -> None:
        self._profile.__exit__(None, None, None)
        events = self._profile.events() or []
        self.operators = [event.name for event in events if event.name.startswith("aten::")]

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture(autouse=True)
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)


def train(model: nn.Module, *, whole: bool) -> Graph:
    """Three steps, the fourth captured, and replayed; `whole`: with the optimizer's step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(8, 4)

    def step(steps: bool = True) -> None:
        loss = model(x).square().mean()
        loss.backward()
        if steps:
            optimizer.step()

    for _ in range(3):
        optimizer.zero_grad()
        step()
    graph: Any = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    graph.capture_begin()
    step(whole)
    graph.capture_end()
    for _ in range(4):
        graph.replay()
        if not whole:
            optimizer.step()
    return graph


@contextmanager
def run(steps: list[TrainingStep], rules: set[str]) -> Iterator[None]:
    def take(step: TrainingStep, found: list[Any]) -> None:
        steps.append(step)
        rules.update(finding.rule for finding in found)

    loop = LoopSteps(due_steps(), take)
    try:
        yield
    finally:
        loop.close()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("how", ["run", "record", "values", "watch"])
def test_a_captured_step_runs_what_it_runs_alone(how: str, whole: bool) -> None:
    steps: list[TrainingStep] = []
    rules: set[str] = set()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "run": lambda: run(steps, rules),
        "record": record,
        "values": lambda: record(values=True),
        "watch": lambda: watch(model),
    }
    alone = train(model, whole=whole).operators
    assert {"aten::linear", "aten::tanh", "aten::tanh_backward"} <= set(alone)
    assert ("aten::addcdiv_" in alone or "aten::_foreach_addcdiv_" in alone) is whole
    with ways[how]() as watching:
        graph = train(model, whole=whole)
    assert graph.operators == alone
    assert graph.replays == 4
    if how == "run":
        assert [step.number for step in steps] == [0, 1, 2]
        assert not rules
    elif how in ("record", "values"):
        assert len(watching.graphs) == 3  # what was captured is in none of them
    else:
        assert not watching.reports


def test_a_recording_says_that_it_does_not_know_what_a_graph_replays() -> None:
    model = nn.Linear(2, 1)
    with record(model) as recording:
        graph: Any = torch.cuda.CUDAGraph()
        graph.replay()
        model(torch.ones(4, 2)).sum().backward()
    notes = [node.note for node in recording.graph.nodes]
    assert "not recorded: what a CUDA graph replays" in notes


def test_a_capture_that_does_not_begin_leaves_all_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "fails", True)
    key = object()
    enter_program(key)
    try:
        with CaptureWatch():
            graph: Any = torch.cuda.CUDAGraph()
            with pytest.raises(RuntimeError, match="no capture"):
                graph.capture_begin()
            assert key in programs()
            assert not is_captured()
    finally:
        leave_program(key)


@pytest.mark.parametrize("watched", [True, False])
def test_the_methods_of_a_graph_are_pytorchs_own_but_while_somebody_watches(watched: bool) -> None:
    own = Graph.capture_begin, Graph.capture_end, Graph.replay
    with CaptureWatch() if watched else nullcontext():
        there = Graph.capture_begin, Graph.capture_end, Graph.replay
        assert [a is b for a, b in zip(own, there, strict=True)] == [not watched] * 3
    assert (Graph.capture_begin, Graph.capture_end, Graph.replay) == own
