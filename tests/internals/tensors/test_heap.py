"""Test that live objects are found by class, while another thread creates tuples."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from graphviz_torch import record
from graphviz_torch.internals.tensors.references import instances_of, subclasses_of


def test_objects_of_a_class_and_of_its_subclasses_are_found() -> None:
    model = nn.Linear(2, 1)
    sgd, adam = SGD(model.parameters(), lr=0.1), Adam(model.parameters())
    assert {id(sgd), id(adam)} <= {id(found) for found in instances_of(subclasses_of(Optimizer))}
    assert id(model) not in {id(found) for found in instances_of(subclasses_of(Optimizer))}
    assert id(sgd) not in {id(found) for found in instances_of([Adam])}


def test_nothing_found_is_held_afterwards() -> None:
    tensor = torch.ones(1)
    before = sys.getrefcount(tensor)
    instances_of(subclasses_of(Optimizer))
    assert sys.getrefcount(tensor) == before


@contextmanager
def switching() -> Iterator[None]:
    """Make threads take turns as often as Python allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def test_tuples_that_other_threads_build_during_a_scan_are_built() -> None:
    done, failed = Event(), []

    def build() -> None:
        while not done.is_set():
            try:
                assert len(tuple(i for i in range(40))) == 40
            except SystemError as error:  # the tuple was held by someone else as it grew
                failed.append(error)

    threads = [Thread(target=build) for _ in range(3)]
    with switching():
        for thread in threads:
            thread.start()
        for _ in range(20):
            instances_of(subclasses_of(Optimizer))
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_step_of_an_optimizer_is_recorded_without_a_search_through_the_heap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    searched: list[object] = []
    monkeypatch.setattr(gc, "get_referrers", lambda *given: searched.append(given) or [])
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    assert recording.graph.nodes
    assert not searched
