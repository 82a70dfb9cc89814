"""Test that the capture of a CUDA graph is not watched, with a class that simulates the graph.

PyTorch's profiler lists the operators between `capture_begin` and `capture_end`, both those of the
program and those of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from graphviz_torch import record, watch
from graphviz_torch.graph import TrainingStep
from graphviz_torch.integrations.steps import LoopSteps, due_steps
from graphviz_torch.internals.frames import TORCH, active_programs, enter_program, leave_program
from graphviz_torch.internals.hooks.captures import CaptureWatch, is_captured


class Graph:
    """A replacement for `torch.cuda.CUDAGraph`, which lists the operators that it captures."""

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


def train(model: nn.Module, *, whole: bool, warm: int = 3) -> Graph:
    """Three steps, the fourth captured, and replayed; `whole`: with the optimizer's step.

    Args:
        warm: so many of the three step with their gradients.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(8, 4)

    def step(steps: bool = True) -> None:
        loss = model(x).square().mean()
        loss.backward()
        if steps:
            optimizer.step()

    for i in range(3):
        optimizer.zero_grad()
        step(i < warm)
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

    loop = LoopSteps(due_steps(), take, on_early_step=lambda step: None)  # reads where one steps
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
        "values": lambda: record(fingerprints=True),
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
    assert "not recorded: the effects of a CUDA graph replay" in notes


def test_a_graph_that_runs_in_a_forward_is_a_part_of_that() -> None:
    class Graphed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph: Any = torch.cuda.CUDAGraph()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.graph.replay()
            return self.scale * x

    with record() as recording:
        Graphed()(torch.ones(4, 2)).sum().backward()
    assert not any(node.note for node in recording.graph.nodes)


def test_a_warm_up_that_uses_no_gradient_is_no_mistake() -> None:
    steps: list[TrainingStep] = []
    rules: set[str] = set()
    with run(steps, rules):
        train(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), whole=False, warm=0)
    assert len(steps[0].backwards) == 3
    assert not rules


@contextmanager
def watched_here() -> Iterator[object]:
    """Enter a program while a watch on captures is open, and yield the program's key."""
    key = object()
    enter_program(key)
    try:
        with CaptureWatch():
            yield key
    finally:
        leave_program(key)


def new_graph() -> Any:
    return torch.cuda.CUDAGraph()


def test_a_capture_that_does_not_begin_leaves_all_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "fails", True)
    with watched_here() as key:
        with pytest.raises(RuntimeError, match="no capture"):
            new_graph().capture_begin()
        assert key in active_programs()
        assert not is_captured()


def test_a_capture_whose_end_raises_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "capture_end", lambda self: 1 / 0)
    with watched_here() as key:
        graph = new_graph()
        graph.capture_begin()
        assert is_captured()
        assert key not in active_programs()
        with pytest.raises(ZeroDivisionError):
            graph.capture_end()
        graph._profile.__exit__(None, None, None)
        assert key in active_programs()
        assert not is_captured()


def test_another_capture_that_fails_meanwhile_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_here() as key:
        outer, inner = new_graph(), new_graph()
        outer.capture_begin()
        monkeypatch.setattr(Graph, "fails", True)
        with pytest.raises(RuntimeError, match="no capture"):
            inner.capture_begin()
        assert is_captured()
        with pytest.raises(RuntimeError, match="no capture"):
            outer.capture_begin()
        assert is_captured()
        outer.capture_end()
        assert key in active_programs()


def test_of_two_captures_at_a_time_the_last_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(Graph, name, lambda self: None)
    with watched_here() as key:
        one, other = new_graph(), new_graph()
        one.capture_begin()
        other.capture_begin()
        one.capture_end()
        assert (is_captured(), key in active_programs()) == (True, False)
        other.capture_end()
        assert (is_captured(), key in active_programs()) == (False, True)


def test_who_ends_amid_a_capture_does_not_come_back() -> None:
    graph, before = new_graph(), active_programs()
    outer = record()
    outer.__enter__()
    graph.capture_begin()
    outer.__exit__(None, None, None)
    assert not is_captured()  # nobody watches
    graph.capture_end()
    assert not active_programs() - before
    with record() as after:
        torch.ones(2, requires_grad=True).sum().backward()
    assert len(after.graphs) == 1


def test_who_ends_amid_a_capture_that_another_watches_does_not_come_back() -> None:
    before = active_programs()
    with watched_here() as key:
        graph, inner = new_graph(), record()
        inner.__enter__()
        graph.capture_begin()
        inner.__exit__(None, None, None)
        assert is_captured()
        graph.capture_end()
        assert active_programs() - before == {key}


def test_who_begins_amid_a_capture_goes_on_after_it() -> None:
    with watched_here():
        graph = new_graph()
        graph.capture_begin()
        with record() as inner:
            graph.capture_end()
            torch.ones(2, requires_grad=True).sum().backward()
        assert len(inner.graphs) == 1


def test_another_thread_is_not_captured() -> None:
    with watched_here():
        graph, said = new_graph(), []
        graph.capture_begin()
        thread = Thread(target=lambda: said.append(is_captured()))
        thread.start()
        thread.join()
        assert (said, is_captured()) == ([False], True)
        graph.capture_end()


CONTEXT = """
class graph:
    def __init__(self, cuda_graph):
        self.cuda_graph = cuda_graph
    def __enter__(self):
        self.cuda_graph.capture_begin()
    def __exit__(self, *_):
        self.cuda_graph.capture_end()

def graphed(cuda_graph):
    with graph(cuda_graph):
        seen()
    cuda_graph.replay()
"""


def test_a_capture_of_pytorchs_own_is_not_told_and_one_of_its_context_is() -> None:
    seen: list[bool] = []
    told: list[str] = []
    pytorch: dict[str, Any] = {"seen": lambda: seen.append(is_captured())}
    exec(compile(CONTEXT, f"{TORCH}cuda/graphs.py", "exec"), pytorch)
    with CaptureWatch(lambda: told.append("begins"), lambda: told.append("replayed")):
        pytorch["graphed"](new_graph())
        assert (seen, told) == ([False], [])
        with pytorch["graph"](new_graph()):
            assert is_captured()
        assert (told, is_captured()) == (["begins"], False)


@pytest.mark.parametrize("watched", [True, False])
def test_the_methods_of_a_graph_are_pytorchs_own_but_while_somebody_watches(watched: bool) -> None:
    own = Graph.capture_begin, Graph.capture_end, Graph.replay
    with CaptureWatch() if watched else nullcontext():
        there = Graph.capture_begin, Graph.capture_end, Graph.replay
        assert [a is b for a, b in zip(own, there, strict=True)] == [not watched] * 3
    assert (Graph.capture_begin, Graph.capture_end, Graph.replay) == own
