"""Test that each `zero_grad` is one event, and that other modes see its accesses to `.grad`."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.overrides import TorchFunctionMode

from graphviz_torch import find, record
from graphviz_torch.internals.frames import enter_program
from graphviz_torch.internals.functions import READ_GRAD, SET_GRAD
from graphviz_torch.internals.hooks.calls import Called, CallWatch
from graphviz_torch.internals.hooks.zero_grad import GradientsCleared, ZeroGradWatch


class Accesses:
    functions = frozenset((READ_GRAD, SET_GRAD))

    def __init__(self, sees: bool) -> None:
        self.sees_zero_grad = sees
        self.calls: list[Any] = []

    def on_call_end(self, event: Called) -> None:
        self.calls.append(event.func)


class UsersMode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def model() -> nn.Module:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers(torch.ones(2)).sum().backward()
    return layers


def watched(listener: Accesses, run: Callable[[], object]) -> list[GradientsCleared]:
    events: list[GradientsCleared] = []

    def inside() -> None:
        key = object()
        enter_program(key)

        def miss(error: Exception) -> None:
            raise error

        with CallWatch([listener], key, miss), ZeroGradWatch(events.append):
            run()

    contextvars.copy_context().run(inside)
    return events


def test_each_zero_grad_is_one_event_and_no_access_is_seen() -> None:
    listener, one, other = Accesses(sees=False), model(), model()
    optimizer = SGD(other.parameters(), 0.1)

    def run() -> None:
        one.zero_grad()
        optimizer.zero_grad()
        one.weight = one[0].weight.grad  # type: ignore[index]

    events = watched(listener, run)
    assert [event.by_optimizer for event in events] == [False, True]
    assert {event.frame.f_code.co_name for event in events} == {"run"}
    assert listener.calls == [READ_GRAD]  # the mode is back
    assert all(p.grad is None for p in [*one.parameters(), *other.parameters()])


def test_whoever_needs_the_accesses_sees_them() -> None:
    listener, mode = Accesses(sees=True), UsersMode()
    assert watched(listener, model().zero_grad) == []
    assert len(listener.calls) == 8
    listener = Accesses(sees=False)

    def with_a_mode() -> None:
        with mode:
            model().zero_grad()

    assert watched(listener, with_a_mode) == []
    assert mode.calls.count(READ_GRAD) == 4
    assert watched(listener, lambda: model().zero_grad(set_to_none=False)) == []


@pytest.mark.parametrize("by", ["model", "optimizer"])
def test_gradients_that_are_cleared_unused_are_found(by: str) -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = SGD(layers.parameters(), 0.1)
    with record(layers) as recording:
        layers(torch.ones(2)).sum().backward()
        (layers if by == "model" else optimizer).zero_grad()
        optimizer.step()
    assert "zero-grad-before-step" in {finding.rule for finding in find(recording)}


def test_the_functions_of_pytorch_are_back_after_a_recording() -> None:
    before = nn.Module.zero_grad, torch.optim.Optimizer.zero_grad
    with record():
        assert nn.Module.zero_grad is not before[0]
    assert (nn.Module.zero_grad, torch.optim.Optimizer.zero_grad) == before
