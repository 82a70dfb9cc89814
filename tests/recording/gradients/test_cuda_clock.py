"""Durations from events, with made-up ones; test_gradients.py has CUDA's own."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import pytest
import torch

from graphviz_torch.recording.gradients import cuda_clock
from graphviz_torch.recording.gradients.cuda_clock import CudaClock

_times = count()


class Event:
    """Recorded a second after the one before, on any device."""

    failed = False  # does CUDA refuse to do anything more

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: tuple[int, int]) -> None:
        self.check()
        self.device = torch.device("cuda", stream[0])
        self.time = next(_times)

    def synchronize(self) -> None:
        self.check()

    def elapsed_time(self, end: Event) -> float:
        self.check()
        if self.device != end.device:
            raise RuntimeError("CUDA error: invalid resource handle")
        return 1000.0 * (end.time - self.time)

    def check(self) -> None:
        if self.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")


class Current:
    """What is current in every thread, to be changed."""

    device = 0
    stream = 7


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Current:
    now = Current()
    monkeypatch.setattr(cuda_clock, "current_device", lambda: now.device)
    monkeypatch.setattr(cuda_clock, "current_stream", lambda device: now.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: (device, now.stream))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return now


def run(clock: CudaClock, node: int, *, describes: bool = False) -> None:
    event: Any = clock.stop()
    clock.start(node, None if describes else event)


def test_a_node_ends_where_the_next_begins_and_the_last_with_the_run(now: Current) -> None:
    clock = CudaClock()
    for node in (5, 3, 4):
        run(clock, node)
    clock.finish()
    assert clock.seconds() == {5: 1.0, 3: 1.0, 4: 1.0}


def test_time_in_which_gradients_are_described_is_nobodys(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    first = next(_times)  # up to here node 0 has taken two events
    run(clock, 1, describes=True)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 1.0}
    assert next(_times) - first == 4


def test_a_node_after_which_the_stream_changes_has_no_duration(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    now.stream = 8
    run(clock, 1)
    run(clock, 2)
    now.stream = 7
    clock.finish()
    assert clock.seconds() == {1: 1.0}


def test_each_thread_of_the_engine_has_its_own_nodes(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    thread = threading.Thread(target=run, args=(clock, 1))
    thread.start()
    thread.join()
    run(clock, 2)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 2.0, 2: 2.0}


def test_what_ran_when_backward_failed_has_no_duration(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    run(clock, 1)
    clock.abandon()
    clock.finish()
    assert clock.seconds() == {0: 1.0}


def test_a_thread_that_goes_to_another_device_times_its_nodes_on_each(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    now.device = 1
    run(clock, 1)
    run(clock, 2)
    now.device = 0
    run(clock, 3)
    now.device = 1
    clock.finish()
    assert clock.seconds().keys() == {0, 1, 2, 3}


def test_the_last_node_of_a_device_with_several_streams_has_no_duration(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    now.stream = 8
    run(clock, 1)
    run(clock, 2)
    clock.finish()  # its stream may have waited for the other
    assert clock.seconds() == {1: 1.0}


def test_durations_that_a_failed_device_keeps_are_none(
    now: Current, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = CudaClock()
    run(clock, 0)
    run(clock, 1)
    monkeypatch.setattr(Event, "failed", True)
    run(clock, 2)
    clock.finish()
    assert clock.seconds() == {}
