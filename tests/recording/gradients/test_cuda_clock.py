"""Test durations with simulated CUDA events; test_gradients.py uses real ones."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from graphviz_torch.recording.gradients import cuda_clock
from graphviz_torch.recording.gradients.cuda_clock import CudaClock
from tests.support.programs import in_threads

_times = count()


class Event:
    """A simulated event, recorded one second after the previous one on any device."""

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


def test_time_in_which_gradients_are_described_is_nobodys(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    first = next(_times)  # up to here node 0 has taken two events
    run(clock, 1, describes=True)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 1.0}
    assert next(_times) - first == 4


@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        ("5 3 4", {5: 1.0, 3: 1.0, 4: 1.0}),  # the last ends with the run
        ("0 stream=8 1 2 stream=7", {1: 1.0}),  # 0 and 2 end on another stream
        ("0 stream=8 1 2", {1: 1.0}),  # the stream of 2 may have waited for the other
        ("0 1 failed", {0: 1.0}),
        ("0 device=1 1 2 device=0 3 device=1", dict.fromkeys(range(4), 1.0)),
    ],
)
def test_a_node_ends_where_the_next_begins_on_its_device_and_its_stream(
    now: Current, program: str, seconds: dict[int, float]
) -> None:
    clock = CudaClock()
    for word in program.split():
        name, _, value = word.partition("=")
        if value:
            setattr(now, name, int(value))
        elif word == "failed":
            clock.abandon()
        else:
            run(clock, int(word))
    clock.finish()
    assert clock.seconds() == seconds


def test_each_thread_of_the_engine_has_its_own_nodes(now: Current) -> None:
    clock = CudaClock()
    run(clock, 0)
    in_threads(lambda: run(clock, 1))
    run(clock, 2)
    clock.finish()
    assert clock.seconds() == {0: 2.0, 1: 2.0, 2: 2.0}


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
