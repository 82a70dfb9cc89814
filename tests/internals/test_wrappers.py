"""Test that a wrapper does not change the names of the wrapped module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from graphviz_torch import record, trace
from graphviz_torch.internals.tensors.reductions import Norms
from tests.support.models import MLP

WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "data parallel": nn.DataParallel,
    "activation checkpointing": checkpoint_wrapper,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=list(WRAPPERS))
def test_a_wrapped_models_parameters_have_the_names_that_the_model_gives_them(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    model = MLP()
    expected = {name for name, _ in model.named_parameters()}
    wrapped = wrap(model)
    with record(wrapped) as recording:
        y = wrapped(torch.ones(1, 4)).sum()
        traced = trace(y, names=wrapped)
        y.backward()
    for graph in (recording.graph, traced):
        assert {node.label for node in graph.nodes if node.leaf == "parameter"} == expected
    assert {parameter.name for parameter in recording.graph.parameters} == expected


def test_a_child_that_is_called_module_is_part_of_the_name() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 1)
    graph = trace(model.module(torch.ones(1, 2)), names=model)
    assert {node.label for node in graph.nodes if node.leaf} == {"module.weight", "module.bias"}


def test_the_norm_of_memory_that_was_freed_is_left_out() -> None:
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    norms = Norms({1: freed, 2: torch.ones(4), 3: torch.ones(0)}).fetch()
    assert norms == {2: (2.0, ""), 3: (0.0, "")}
