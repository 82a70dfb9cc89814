"""Find live objects of a class, through the garbage collector.

Uses the private `torch._C.TensorBase`, whose `grad_fn` no subclass can override (2.13).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import chain, compress, starmap
from typing import Any

import torch
from torch import Tensor

from ..exceptions import ignore_exceptions

# The getter is called directly, because a subclass may override the attribute.
_grad_fn: Any = torch._C.TensorBase.grad_fn.__get__  # type: ignore[union-attr]


def subclasses_of(kind: type) -> list[Any]:
    """Return `kind` and all of its subclasses.

    >>> [each.__name__ for each in subclasses_of(ArithmeticError)][:2]
    ['ArithmeticError', 'FloatingPointError']
    """
    kinds: list[Any] = [kind]
    for each in kinds:  # the list grows while it is iterated
        kinds += type.__subclasses__(each)
    return kinds


def instances_of(kinds: Sequence[type]) -> list[Any]:
    """Return the objects tracked by the garbage collector whose type is one of `kinds`.

    An object refers to its type. Listing the objects that refer to a few types takes less than half
    as long as listing all objects.

    The scan is a single call into C, during which no other thread runs. Otherwise another thread
    could be building a tuple to which the scan refers, and would fail with a SystemError (3.11).
    """
    is_kind = set(kinds).__contains__
    objects: list[Any] = []
    fill = map(objects.extend, starmap(gc.get_referrers, (kinds,)))  # lazy: runs inside `list`
    found = compress(objects, map(is_kind, map(type, objects)))
    empty = map(list.clear, (objects,))
    return list(chain(fill, found, empty))[1:-1]  # drops the None of `extend` and of `clear`


def tensors_made_since(number: int) -> Iterator[tuple[int, Any, Tensor]]:
    """Yield (sequence number, node, tensor) for nodes with sequence number `number` or later."""
    with torch._C.DisableTorchFunction():
        for value in instances_of(subclasses_of(Tensor)):
            fn: Any = None
            with ignore_exceptions():  # raised for some views that were changed in place
                fn = _grad_fn(value)
            if fn is not None and fn._sequence_nr() >= number:
                yield fn._sequence_nr(), fn, value
