"""Hooks on the calls of all modules, at the same keys whenever they are there.

PyTorch counts the keys of its hooks up, and torch.compile looks at them: it would compile a module
again in every recording, and after eight of them leave it uncompiled.

Private: the dictionaries that hold the hooks (2.13).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from torch.nn.modules import module as nn_module

_lock = threading.RLock()  # the collector may end a forgotten recording while this thread holds it


class ModuleHooks:
    """A context in which `before` and `after` are called around every module's forward.

    Args:
        before: takes the module and its arguments.
        after: takes the module, its arguments and its output, which is None if it raised.
    """

    def __init__(
        self,
        before: Callable[[Any, Any], None],
        after: Callable[[Any, Any, Any], None],
    ) -> None:
        self._calls = before, after

    def __enter__(self) -> ModuleHooks:
        before, after = self._calls
        hooks: Any = nn_module
        with _lock:
            keys = (("graphviz_torch", n) for n in count())
            key = next(key for key in keys if key not in hooks._global_forward_pre_hooks)
            hooks._global_forward_pre_hooks[key] = before
            hooks._global_forward_hooks_always_called[key] = True
            hooks._global_forward_hooks[key] = after
        self._key = key
        return self

    def __exit__(self, *_: object) -> None:
        hooks: Any = nn_module
        with _lock:
            hooks._global_forward_pre_hooks.pop(self._key, None)
            hooks._global_forward_hooks.pop(self._key, None)
            hooks._global_forward_hooks_always_called.pop(self._key, None)
        del self._calls  # they are their owner's, and it is to go without the collector
