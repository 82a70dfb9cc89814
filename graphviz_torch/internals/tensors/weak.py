"""Weak references to tensors that `torch.utils.swap_tensors` tolerates.

`swap_tensors` refuses a tensor that has weak references. `module.to` and `load_state_dict` then
fail under `torch.__future__.set_swap_module_params_on_conversion`. References of class `Ref` are
still correct after a swap, because they refer to the tensor object, whatever its content.

`swap_tensors` also refuses a leaf whose AccumulateGrad node is alive. Code that keeps nodes alive
is therefore notified before a swap.

`swap_tensors` calls the private `torch.utils.weakref.getweakrefs` (2.13). While a watch is open,
`torch.utils.weakref` is replaced by an object that leaves out our references.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
