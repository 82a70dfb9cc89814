"""Tensors that autograd made, and modules of a class, found as the garbage collector finds them.

Private: `torch._C.TensorBase` has the `grad_fn` that no subclass has replaced (2.13).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

# Not by the attribute: a subclass may have one of its own.
_grad_fn: Any = torch._C.TensorBase.grad_fn.__get__  # type: ignore[union-attr]


def tensors_made_since(number: int) -> Iterator[tuple[int, Any, Tensor]]:
    """Each tensor whose node has this sequence number or a later one: number, node, tensor."""
    with torch._C.DisableTorchFunction():
        for value in gc.get_objects():
            if issubclass(type(value), Tensor):
                fn: Any = None
                with suppress(Exception):  # a view that was changed in place in some ways
                    fn = _grad_fn(value)
                if fn is not None and fn._sequence_nr() >= number:
                    yield fn._sequence_nr(), fn, value


def modules_of_class(kind: type[Module]) -> list[Any]:
    """Each module of this class or one below it: an object refers to its class."""
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    return [value for value in gc.get_referrers(*kinds) if issubclass(type(value), kind)]
