"""Find live tensors created by autograd, and modules of a class, through the garbage collector.

Uses the private `torch._C.TensorBase`, whose `grad_fn` no subclass can override (2.13).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

# Not read as an attribute, which a subclass may override.
_grad_fn: Any = torch._C.TensorBase.grad_fn.__get__  # type: ignore[union-attr]


def tensors_made_since(number: int) -> Iterator[tuple[int, Any, Tensor]]:
    """Yield (sequence number, node, tensor) for nodes with sequence number `number` or later."""
    with torch._C.DisableTorchFunction():
        for value in gc.get_objects():
            if issubclass(type(value), Tensor):
                fn: Any = None
                with suppress(Exception):  # raised for some views that were changed in place
                    fn = _grad_fn(value)
                if fn is not None and fn._sequence_nr() >= number:
                    yield fn._sequence_nr(), fn, value


def modules_of_class(kind: type[Module]) -> list[Any]:
    """Return all live modules of class `kind` or of a subclass of it."""
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    return [value for value in gc.get_referrers(*kinds) if issubclass(type(value), kind)]
