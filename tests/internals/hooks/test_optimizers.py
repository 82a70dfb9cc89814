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
        patch.setattr(gc, "get_objects", looked)
        assert optimizers.optimized_parameters() == set()
    optimizer = Second([parameter], {})
    assert optimizers.optimized_parameters() == {id(parameter)}
    assert optimizer.param_groups[0]["params"] == [parameter]


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
