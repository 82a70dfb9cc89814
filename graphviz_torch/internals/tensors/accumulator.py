"""The node that collects a leaf's gradient, found without a call that anybody sees.

`get_gradient_edge` calls `view_as` on the leaf: sparse, MKL-DNN, nested and lazy leaves refuse
that, and modes, tracers, checkpoint policies and subclasses see it. Two ways of autograd's own ask
the leaf for its node and call no operator.

Private: `torch._C._functions.DelayedError` takes any plain tensor and hands on an alias of it that
has a node. The C++ half of `Function.apply` serves subclasses: an alias of a subclass cannot be
made without running its own code (2.13). That half shows in a profile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .metadata import undisturbed

_plain: Any = torch._C._functions.DelayedError("", 1)


def accumulator(leaf: Tensor) -> Any:
    """The node that adds up the gradient of a leaf; None where autograd has none.

    Autograd has none for a tensor that requires no gradient, and inside `torch.func` transforms.

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
                with undisturbed(leaf):
                    return _of_subclass(leaf)
            return _plain(leaf).grad_fn.next_functions[0][0]
        finally:
            torch._C._set_grad_enabled(enabled)


class _Edges(torch.autograd.Function):
    """Tells the nodes of what it is given, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, found: list[Any]) -> None:
        found.append(ctx.next_functions[0][0])


def _of_subclass(leaf: Tensor) -> Any:
    found: list[Any] = []
    apply: Any = super(torch.autograd.Function, _Edges).apply
    apply(leaf, found)
    return found[0]


def _is_subclass(leaf: Tensor) -> bool:
    # True for meta tensors and for nested ones too, which are plain unless they are of a class.
    like: bool = torch._C._dispatch_isTensorSubclassLike(leaf)
    return like and not leaf.is_meta and type(leaf) not in (Tensor, torch.nn.Parameter)
