"""Test which parameters the optimizers of a process hold, and which batches its loaders return."""

from __future__ import annotations

import gc
from typing import Any, NoReturn

import pytest
import torch
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from graphviz_torch.internals.hooks import optimizers


def test_objects_are_looked_through_once_an_optimizer_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class First(Optimizer):
        def step(self, closure: Any = None) -> Any:
            return None

    class Second(First):
        def step(self, closure: Any = None) -> Any:
            return None

    def looked(*_: object) -> NoReturn:
        raise AssertionError("every object of the process was looked at")

    monkeypatch.setattr(optimizers, "Optimizer", First)  # as if there were no other classes
    parameter = torch.nn.Parameter(torch.ones(2))
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_referrers", looked)
        assert optimizers.optimized_parameters() == set()
    optimizer = Second([parameter], {})
    assert optimizers.optimized_parameters() == {id(parameter)}
    assert optimizer.param_groups[0]["params"] == [parameter]


def test_objects_are_looked_through_again_for_a_parameter_that_no_known_optimizer_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(*_: object) -> NoReturn:
        raise LookupError

    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    known, keys = torch.optim.SGD([first], lr=0.1), [id(first), id(second)]
    assert id(first) in optimizers.optimized_parameters(keys[:1])
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_referrers", looked)
        assert id(first) in optimizers.optimized_parameters(keys[:1])
        known.add_param_group({"params": [second]})
        assert {*keys} <= optimizers.optimized_parameters(keys)
        known.param_groups.pop()
        with pytest.raises(LookupError):
            optimizers.optimized_parameters(keys)
    later = torch.optim.Adam([second])
    assert {*keys} <= optimizers.optimized_parameters(keys)
    del known, later
    gc.collect()
    assert optimizers.optimized_parameters(keys).isdisjoint(keys)


def test_the_iterators_of_loaders_are_pytorchs_own_but_while_batches_are_watched() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
    plain = _BaseDataLoaderIter.__next__
    asked: list[str] = []
    with optimizers.BatchWatch(on_request=lambda: asked.append("batch")):
        assert len(list(loader)) == 2
    assert asked == ["batch"] * 3  # the last one finds the end
    assert _BaseDataLoaderIter.__next__ is plain
    assert len(list(loader)) == 2
    assert len(asked) == 3
