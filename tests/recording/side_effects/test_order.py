"""Test overlapping recordings that end in any order and in any thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphviz_torch import record
from tests.support.observable import changes, observable
from tests.support.programs import in_threads


def leave(recording: Any) -> None:
    recording.__exit__(None, None, None)


def lines(recording: Any) -> list[str]:
    return [node.where for node in recording.graph.nodes if not node.leaf]


def work(x: Tensor) -> None:
    y = x.exp()
    cut = y.detach()
    (y * cut).sum().backward()


def test_a_recording_knows_lines_and_cuts_after_an_older_one_ended() -> None:
    x = torch.ones(2, requires_grad=True)
    with record() as expected:
        work(x)
    before = observable()
    older, newer = record(), record()
    older.__enter__()
    newer.__enter__()
    leave(older)
    work(x)
    assert lines(newer) == lines(expected)
    assert newer.graph.cuts == expected.graph.cuts
    leave(newer)
    assert older.graphs == []
    del older, newer
    assert changes(before, observable()) == {}


def test_a_recording_that_another_thread_ends_ends_there_and_no_other_does() -> None:
    x = torch.ones(2, requires_grad=True)
    with record() as expected:
        work(x)
    before = observable()

    def ended_elsewhere() -> None:
        here = record()
        here.__enter__()

        def elsewhere() -> list[str]:
            with record() as recording:
                leave(here)
                work(x)
            return lines(recording)

        assert in_threads(elsewhere) == [lines(expected)]
        work(x)
        assert here.graphs == []

    ended_elsewhere()
    with record() as following:  # takes with it what the other thread could not reach
        work(x)
    assert lines(following) == lines(expected)
    del following
    assert changes(before, observable()) == {}


def test_a_scripted_module_is_recorded_and_tracing_one_is_left_alone() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    scripted = torch.jit.script(model)
    x = torch.ones(1, 3)
    with record() as recording:
        scripted(x).sum().backward()
        traced = torch.jit.trace(model, x)  # compares two traces, with the names in them
    assert recording.graph.nodes[-1].order == 0
    assert torch.equal(traced(x), model(x))
