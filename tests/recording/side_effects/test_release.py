"""Test that a recording keeps no tensor and no node after its end, also after an exception."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from graphviz_torch import record
from tests.support.programs import function


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run_out(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory.")


OutOfMemory = function(lambda ctx, x: x.clone(), run_out)


class _Alive:
    """What lives in the metadata of a node as long as the node."""


def forward(model: nn.Module, alive: list[weakref.ref[Any]]) -> torch.Tensor:
    hidden = model(torch.ones(8, 4)).tanh()
    mark = _Alive()
    assert hidden.grad_fn is not None
    hidden.grad_fn.metadata["alive"] = mark
    alive += [weakref.ref(hidden), weakref.ref(mark)]
    hidden.detach().norm().item()  # a cut, and a read
    with torch.no_grad():
        alive.append(weakref.ref(hidden * 2))
    return hidden


def a_call_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    forward(model, alive) @ torch.ones(7, 7)


def a_backward_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    OutOfMemory.apply(forward(model, alive)).sum().backward()


def a_second_backward_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    loss = forward(model, alive).square().sum()
    loss.backward()
    loss.backward()


def a_hook_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    hidden = forward(model, alive)
    hidden.register_hook(lambda gradient: 1 / 0)
    hidden.sum().backward()


def the_block_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    hidden = forward(model, alive)
    raise KeyError(hidden.shape)


def nothing_raises(model: nn.Module, alive: list[weakref.ref[Any]]) -> None:
    forward(model, alive)


STEPS = [
    *(a_call_raises, a_backward_raises, a_second_backward_raises, a_hook_raises),
    *(the_block_raises, nothing_raises),
]


@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_made_is_let_go_when_its_block_is_left(step: Callable[..., None]) -> None:
    model = nn.Linear(4, 4)
    alive: list[weakref.ref[Any]] = []
    errors = (RuntimeError, KeyError, ZeroDivisionError)
    with suppress(*errors), record(model) as recording:
        step(model, alive)
    assert recording.graph.nodes
    assert [ref() for ref in alive] == [None] * len(alive)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_what_a_step_made_is_let_go_when_its_error_is_caught_inside_the_block(
    step: Callable[..., None],
) -> None:
    model = nn.Linear(4, 4)
    alive: list[weakref.ref[Any]] = []
    with record(model):
        with suppress(RuntimeError, KeyError, ZeroDivisionError):
            step(model, alive)
        model(torch.ones(1, 4)).sum().backward()  # what is noted of the error is over then
        assert [ref() for ref in alive] == [None] * len(alive)


def test_a_retry_loop_keeps_flat_memory_over_200_failures() -> None:
    model = nn.Linear(4, 4)
    alive: list[weakref.ref[Any]] = []
    counts = []
    for trial in range(200):
        with suppress(torch.OutOfMemoryError), record(model):
            a_backward_raises(model, alive)
        if trial in (50, 199):
            counts.append(len(gc.get_objects()))
    assert [ref() for ref in alive] == [None] * len(alive)
    assert counts[1] - counts[0] < 5 * (len(alive) // 200) * 149  # the references of this test


def test_a_recording_is_left_twice_and_never_without_being_entered() -> None:
    recording = record()
    with pytest.raises(RuntimeError, match="was not entered"):
        recording.__exit__(None, None, None)
    with recording:
        torch.ones(2, requires_grad=True).sum().backward()
    graph = recording.graph
    recording.__exit__(None, None, None)
    assert recording.graph is graph


def test_a_node_that_lives_on_has_nothing_of_ours_and_what_it_was_given_goes_with_it() -> None:
    class Thing:
        pass

    x = torch.ones(2, requires_grad=True)
    with record():
        y = (x**3).sum()
        y.backward(retain_graph=True)
        thing = Thing()
        assert y.grad_fn is not None
        y.grad_fn.metadata["thing"] = thing
        gone = weakref.ref(thing)
        z = (x**2).sum()
        z.backward()
        del thing, y
        assert gone() is None
    assert z.grad_fn is not None
    assert dict(z.grad_fn.metadata) == {}


def test_a_leaf_that_is_detached_in_place_is_let_go() -> None:
    def program() -> list[weakref.ref[Any]]:
        leaf = torch.ones(3, requires_grad=True)
        view = leaf[1:]  # which makes the leaf's node
        leaf.detach_()
        return [weakref.ref(leaf), weakref.ref(view)]

    with record():
        alive = program()
    assert [ref() for ref in alive] == [None, None]
