"""Weak references that `torch.utils.swap_tensors` does not count, and the rest let go before it.

It refuses a tensor that has any, and with it `module.to` and `load_state_dict` refuse where
`torch.__future__.set_swap_module_params_on_conversion` is on. A reference of ours is to the tensor
that the program has in its hands, whatever that is given to hold: swapping does it no harm.
It refuses a leaf whose node is alive, too: so whoever holds nodes is told that it begins.

Private: `swap_tensors` asks `torch.utils.weakref.getweakrefs` (2.13). While a context is open that
name has a stand-in, which leaves out ours.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..hooks.watch import Installation, Watch

_utils: Any = torch.utils


class Ref(weakref.ref[Tensor]):
    """A weak reference to a tensor that `swap_tensors` does not count."""

    __slots__ = ()


class Uncounted(Watch):
    """While it is open, `swap_tensors` does not count a `Ref`.

    Args:
        release: called when it begins, to let go of nodes.
    """

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        self.release = release


class _WeakrefModule:
    """The module `weakref`, which knows nothing of ours."""

    def getweakrefs(self, value: Any) -> list[Any]:
        for watcher in _installation.watchers:
            watcher.release()
        return [ref for ref in weakref.getweakrefs(value) if not issubclass(type(ref), Ref)]

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)


def _install() -> None:
    _utils.weakref = _WeakrefModule()


def _remove() -> None:
    _utils.weakref = weakref


_installation = Installation[Uncounted](_install, _remove)
Uncounted.installation = _installation
