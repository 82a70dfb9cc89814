"""Weak references to tensors, and the live objects of a class.

`swap_tensors` refuses a tensor that has weak references. `module.to` and `load_state_dict` then
fail under `torch.__future__.set_swap_module_params_on_conversion`. References of class `Ref` are
still correct after a swap, because they refer to the tensor object, whatever its content.

`swap_tensors` also refuses a leaf whose AccumulateGrad node is alive. Code that keeps nodes alive
is therefore notified before a swap.

`swap_tensors` calls the private `torch.utils.weakref.getweakrefs` (2.13). While a watch is open,
`torch.utils.weakref` is replaced by an object that leaves out our references.

Uses the private `torch._C.TensorBase`, whose `grad_fn` no subclass can override (2.13).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, starmap
from typing import Any

import torch
from torch import Tensor

from ..exceptions import ignore_exceptions
from ..hooks.watch import Replacement, Watch


class Ref(weakref.ref[Tensor]):
    """A weak reference to a tensor, ignored by `swap_tensors`."""

    __slots__ = ()


class SwapSafeRefs(Watch):
    """A watch that makes `swap_tensors` ignore each `Ref`.

    Args:
        release: called before a swap, to drop references to nodes.
    """

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        self.release = release


class _WeakrefModule:
    """Replacement for the module `weakref`: its `getweakrefs` leaves out objects of class `Ref`."""

    def getweakrefs(self, value: Any) -> list[Any]:
        for watcher in _installation.watchers:
            watcher.release()
        return [ref for ref in weakref.getweakrefs(value) if not issubclass(type(ref), Ref)]

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)


_installation = Replacement[SwapSafeRefs](
    lambda: [(torch.utils, "weakref", lambda original: _WeakrefModule())]
)
SwapSafeRefs.installation = _installation


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
