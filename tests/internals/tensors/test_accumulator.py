"""Test that a leaf's node is PyTorch's own, for each kind of leaf, and that no mode sees it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from graphviz_torch import trace
from graphviz_torch.internals.tensors.metadata import accumulator
from tests.support.programs import Functions, Operators

EYE = torch.eye(4)
RAGGED = [torch.ones(2, 2), torch.ones(3, 2)]
LEAVES: dict[str, Callable[[], Tensor]] = {
    "dense": EYE.clone,
    "meta": lambda: EYE.to("meta"),
    "COO": EYE.to_sparse,
    "CSR": EYE.to_sparse_csr,
    "CSC": EYE.to_sparse_csc,
    "BSR": lambda: EYE.to_sparse_bsr((2, 2)),
    "BSC": lambda: EYE.to_sparse_bsc((2, 2)),
    "MKL-DNN": EYE.to_mkldnn,
    "nested": lambda: torch.nested.nested_tensor(RAGGED),
    "jagged": lambda: torch.nested.nested_tensor(RAGGED, layout=torch.jagged),
    "a subclass": lambda: TwoTensor(EYE.clone(), EYE.clone()),
}


def leaf_of(kind: str) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LEAVES[kind]().detach().requires_grad_()


@pytest.mark.parametrize("kind", LEAVES)
def test_it_is_the_node_that_collects_the_gradient_of_this_very_leaf(kind: str) -> None:
    leaf = leaf_of(kind)
    node = accumulator(leaf)
    assert type(node).__name__ == "AccumulateGrad"
    assert node.variable is leaf
    assert accumulator(leaf) is node
    assert [(n.leaf, n.name) for n in trace(leaf, names={}).nodes] == [("tensor", "AccumulateGrad")]


@pytest.mark.parametrize("kind", ["dense", "meta", "a subclass"])
def test_it_is_what_pytorch_finds_where_pytorch_finds_one(kind: str) -> None:
    leaf = leaf_of(kind)
    assert torch.autograd.graph.get_gradient_edge(leaf).node is accumulator(leaf)


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_no_mode_sees_that_it_is_looked_up_and_none_changes(kind: str, mode: Any) -> None:
    leaf = leaf_of(kind)
    names = set(vars(leaf))
    with mode(), Operators() as seen, Functions() as called:
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        assert accumulator(leaf).variable is leaf
        assert state == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        made = list(called.calls)
    assert seen.calls == []
    assert not any("view" in str(func) for func in made)
    assert set(vars(leaf)) == names


def test_a_lazy_parameter_has_one_and_stays_lazy() -> None:
    layer = nn.LazyLinear(2)
    weight: Any = layer.weight
    assert accumulator(weight).variable is weight
    assert nn.parameter.is_lazy(layer.weight)


def test_a_leaf_without_gradient_has_none() -> None:
    assert accumulator(torch.ones(2)) is None
