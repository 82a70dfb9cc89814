"""Durations from events, with made-up ones; test_gradients.py has CUDA's own."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch

from graphviz_torch import cuda_clock
from graphviz_torch.cuda_clock import CudaClock

_times = count()


class Event:
    """Recorded a second after the one before."""

    def __init__(self) -> None:
        self.time = next(_times)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1000.0 * (end.time - self.time)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The current stream, to be changed."""
    now = [7]
    monkeypatch.setattr(cuda_clock, "current_stream", lambda device: now[0])
    monkeypatch.setattr(cuda_clock, "_recorded", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return now


def run(clock: CudaClock, node: int, *, describes: bool = False) -> None:
    event: Any = clock.stop()
    clock.start(node, 0, None if describes else event)


def test_a_node_ends_where_the_next_begins_and_the_last_with_the_run(stream: list[int]) -> None:
    clock = CudaClock()
    for node in (5, 3, 4):
        run(clock, node)
    clock.finish()
    assert clock.seconds() == {5: 1.0, 3: 1.0, 4: 1.0}


def test_time_in_which_gradients_are_described_is_nobodys(stream: list[int]) -> None:
    clock = CudaClock()
    run(clock, 0)
    first = next(_times)  # up to here node 0 has taken two events
    run(clock, 1, describes=True)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 1.0}
    assert next(_times) - first == 4


def test_a_node_after_which_the_stream_changes_has_no_duration(stream: list[int]) -> None:
    clock = CudaClock()
    run(clock, 0)
    stream[0] = 8
    run(clock, 1)
    run(clock, 2)
    stream[0] = 7
    clock.finish()
    assert clock.seconds() == {1: 1.0}


def test_each_thread_of_the_engine_has_its_own_nodes(stream: list[int]) -> None:
    clock = CudaClock()
    run(clock, 0)
    thread = threading.Thread(target=run, args=(clock, 1))
    thread.start()
    thread.join()
    run(clock, 2)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 2.0, 2: 2.0}


def test_what_ran_when_backward_failed_has_no_duration(stream: list[int]) -> None:
    clock = CudaClock()
    run(clock, 0)
    run(clock, 1)
    clock.abandon()
    clock.finish()
    assert clock.seconds() == {0: 1.0}
