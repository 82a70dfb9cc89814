"""Test that reading a graph changes nothing and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import trace
from graphviz_torch.tracing import iter_grad_fns
from tests.support import models
from tests.support.autograd_reference import labels
from tests.support.programs import Functions, Operators


def test_reading_makes_no_node_and_no_accumulator() -> None:
    x = torch.ones(4, requires_grad=True)
    unused = torch.ones(4, requires_grad=True)  # it has no accumulator, and is to get none
    base = x * 1
    stale = base[:2]
    base.mul_(2)  # the next reading of stale.grad_fn makes a node
    y = base.sum()
    before = torch._C._autograd._get_sequence_nr()
    graph = trace(y)
    assert torch._C._autograd._get_sequence_nr() == before
    assert set(labels(graph)) == {"x", "base", "y"}
    assert stale.requires_grad
    assert unused.requires_grad


def test_no_mode_sees_the_reading() -> None:
    y = models.ConvNet()(torch.ones(1, 3, 4, 4))
    with Functions() as functions, Operators() as operators:
        trace(y)
        iter_grad_fns(y)
    assert functions.calls == operators.calls == []


class Watched(Tensor):
    reads = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.reads += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_subclass_does_not_see_the_reading() -> None:
    x = torch.ones(3).as_subclass(Watched).requires_grad_()
    y = (x * 2).sum()
    Watched.reads = 0
    graph = trace(y)
    assert Watched.reads == 0
    assert labels(graph) == {"x": "AccumulateGrad", "y": "AliasBackward0"}


def test_gradients_are_those_of_an_untraced_run() -> None:
    def gradients(traced: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = models.Transformer()
        y = model(models.tokens()).sum()
        if traced:
            trace(y)
        y.backward()
        return [p.grad for p in model.parameters()]

    for traced, plain in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(traced, plain)


def test_nothing_outlives_the_users_own_outputs() -> None:
    def run() -> list[weakref.ref[Any]]:
        model = models.ConvNet()
        x = torch.ones(1, 3, 4, 4, requires_grad=True)
        a = model(x)
        y = a.sum()
        fns = iter_grad_fns(y)
        graph = trace({"y": y, "a": a})
        assert len(graph.nodes) == len(fns)
        held = [weakref.ref(value) for value in (model, model.conv.weight, x, a, y)]
        del fns, model, x, a, y
        # While the function runs on, and without the collector's help.
        assert [ref() for ref in held] == [None] * 5
        return held

    gc.disable()
    try:
        run()
    finally:
        gc.enable()


def test_the_caller_may_go_on_with_a_snapshot_of_its_variables() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    snapshot = locals()
    trace(y)
    assert snapshot["x"] is x
    assert snapshot["y"] is y


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        trace(models.chain(3))
        assert gc.isenabled() is enabled
        with pytest.raises(TypeError):
            trace(3)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
