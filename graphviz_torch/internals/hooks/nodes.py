"""Hooks on many live nodes, put on and taken off together.

Private: a node that is given a hook asks `torch.autograd.Function._register_hook` for the
dictionary to keep it in (2.11 to 2.15). PyTorch's answer makes a handle with a weak reference too,
which on a thousand nodes takes longer than all else that a hook costs. Here the answer is the
dictionary alone, to the thread that asks for many.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch

_lock = threading.RLock()  # `put` takes its hooks off again where it fails


class Hooks:
    """Hooks that are on from `put` to `remove`."""

    def __init__(self) -> None:
        self._dictionaries: list[OrderedDict[Any, Any]] = []  # that hold one of ours
        self._handles: list[Any] = []

    def put(self, hooks: Iterable[tuple[Callable[[Any], Any], Callable[..., Any]]]) -> None:
        """Put hooks on nodes that have none of these yet.

        Args:
            hooks: pairs of a node's `register_prehook` or `register_hook`, and what to give it.
        """
        dictionaries, own = self._dictionaries, None

        def ours(known: OrderedDict[Any, Any] | None, hook: Any) -> tuple[Any, Any]:
            if hook is not own:  # another thread's
                return theirs(known, hook)  # type: ignore[no-any-return]
            if known is None:
                known = OrderedDict()
            dictionaries.append(known)  # first: an interrupt may come between the two
            known[self] = hook
            return known, None

        function: Any = torch.autograd.Function
        with _lock:
            theirs = function._register_hook
            try:
                function._register_hook = staticmethod(ours)
                for register, own in hooks:
                    if (handle := register(own)) is not None:
                        self._handles.append(handle)
            except BaseException:
                self.remove()
                raise
            finally:
                _inherit(function)

    def remove(self) -> None:
        """Take all of them off."""
        for known in self._dictionaries:
            if self in known:
                del known[self]
        for handle in self._handles:
            handle.remove()
        self._dictionaries, self._handles = [], []
        with _lock:  # a Ctrl-C may have come before `put` could
            _inherit(torch.autograd.Function)


def hook_dictionaries(fns: Iterable[Any]) -> list[OrderedDict[Any, Any]]:
    """The dictionary that each node keeps its hooks in, made if it has none: it dies with the node.

    No hook is added.
    """
    thread = threading.get_ident()
    found: list[OrderedDict[Any, Any]] = []

    def ours(known: OrderedDict[Any, Any] | None, hook: Any) -> tuple[Any, Any]:
        if threading.get_ident() != thread:
            return theirs(known, hook)  # type: ignore[no-any-return]
        found.append(OrderedDict() if known is None else known)
        return found[-1], None

    function: Any = torch.autograd.Function
    with _lock:
        theirs = function._register_hook
        try:
            function._register_hook = staticmethod(ours)
            for fn in fns:
                fn.register_prehook(ours)
        finally:
            _inherit(function)
    return found


def _inherit(function: Any) -> None:
    if "_register_hook" in vars(function):
        del function._register_hook  # what it inherits is there again
