"""Register hooks on many live autograd nodes, and remove them together.

To register a hook, a node calls the private `torch.autograd.Function._register_hook`, which returns
the node's dictionary of hooks (2.11 to 2.15). This function also creates a handle with a weak
reference, which takes most of the time if there are a thousand nodes. While this thread registers
hooks, it is replaced by a function that returns only the dictionary.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch

_lock = threading.RLock()  # reentrant: `put` calls `remove` if it fails


class Hooks:
    """Hooks on autograd nodes, registered by `put` and removed by `remove`."""

    def __init__(self) -> None:
        # Dictionaries of nodes, each of which contains one of these hooks.
        self._dictionaries: list[OrderedDict[Any, Any]] = []
        self._handles: list[Any] = []

    def put(self, hooks: Iterable[tuple[Callable[[Any], Any], Callable[..., Any]]]) -> None:
        """Register hooks on nodes that have none of these hooks yet.

        Args:
            hooks: pairs of a node's `register_prehook` or `register_hook`, and the hook.
        """
        dictionaries, own = self._dictionaries, None

        def return_dictionary(known: OrderedDict[Any, Any] | None, hook: Any) -> tuple[Any, Any]:
            if hook is not own:  # another thread registers a hook
                return original(known, hook)  # type: ignore[no-any-return]
            if known is None:
                known = OrderedDict()
            # The dict is stored before the hook is added, so that `remove` also works after an
            # interrupt.
            dictionaries.append(known)
            known[self] = hook
            return known, None

        function: Any = torch.autograd.Function
        with _lock:
            original = function._register_hook
            try:
                function._register_hook = staticmethod(return_dictionary)
                for register, own in hooks:
                    if (handle := register(own)) is not None:
                        self._handles.append(handle)
            except BaseException:
                self.remove()
                raise
            finally:
                _inherit(function)

    def remove(self) -> None:
        """Remove all of the hooks."""
        for known in self._dictionaries:
            if self in known:
                del known[self]
        for handle in self._handles:
            handle.remove()
        self._dictionaries, self._handles = [], []
        with _lock:  # `put` may have been interrupted before it restored the function
            _inherit(torch.autograd.Function)


def hook_dictionaries(fns: Iterable[Any]) -> list[OrderedDict[Any, Any]]:
    """Return each node's dictionary of hooks, and create it if the node has none.

    No hook is added. A dictionary lives as long as its node.
    """
    thread = threading.get_ident()
    found: list[OrderedDict[Any, Any]] = []

    def return_dictionary(known: OrderedDict[Any, Any] | None, hook: Any) -> tuple[Any, Any]:
        if threading.get_ident() != thread:
            return original(known, hook)  # type: ignore[no-any-return]
        found.append(OrderedDict() if known is None else known)
        return found[-1], None

    function: Any = torch.autograd.Function
    with _lock:
        original = function._register_hook
        try:
            function._register_hook = staticmethod(return_dictionary)
            for fn in fns:
                fn.register_prehook(return_dictionary)
        finally:
            _inherit(function)
    return found


def _inherit(function: Any) -> None:
    if "_register_hook" in vars(function):
        del function._register_hook  # the function that the class inherits is then used again
