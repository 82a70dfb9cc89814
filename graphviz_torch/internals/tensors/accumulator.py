"""Find the AccumulateGrad node of a leaf without calling an operator.

`get_gradient_edge` calls the operator `view_as` on the leaf. Sparse, MKL-DNN, nested and lazy
leaves refuse this call, and modes, tracers, checkpoint policies and subclasses see it. Two
internals of autograd find the node without calling an operator.

Uses private API (2.13): `torch._C._functions.DelayedError` takes a plain tensor and returns an
alias that has a node. For subclasses the C++ part of `Function.apply` is used, because an alias of
a subclass cannot be created without running the subclass's code. That call appears in a profile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .metadata import without_new_capsules

_alias: Any = torch._C._functions.DelayedError("", 1)


def accumulator(leaf: Tensor) -> Any:
    """Return the AccumulateGrad node of a leaf; None if it has none.

    A tensor that requires no gradient has no such node, and neither has a tensor inside a
    `torch.func` transform.

    >>> leaf = torch.ones(2).to_sparse().requires_grad_()
    >>> accumulator(leaf).variable is leaf
    True
    """
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._InferenceMode(False),
    ):
        if not leaf.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            return None
        enabled = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(True)
            if _is_subclass(leaf):
                with without_new_capsules(leaf):
                    return _subclass_accumulator(leaf)
            return _alias(leaf).grad_fn.next_functions[0][0]
        finally:
            torch._C._set_grad_enabled(enabled)


class _Edges(torch.autograd.Function):
    """Custom Function that collects the autograd nodes of its inputs, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, found: list[Any]) -> None:
        found.append(ctx.next_functions[0][0])


def _subclass_accumulator(leaf: Tensor) -> Any:
    found: list[Any] = []
    apply: Any = super(torch.autograd.Function, _Edges).apply
    apply(leaf, found)
    return found[0]


def _is_subclass(leaf: Tensor) -> bool:
    # This function of PyTorch also returns True for meta and nested tensors, which are plain
    # tensors unless they have a class of their own.
    like: bool = torch._C._dispatch_isTensorSubclassLike(leaf)
    return like and not leaf.is_meta and type(leaf) not in (Tensor, torch.nn.Parameter)
