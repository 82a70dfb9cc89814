"""Run compiled functions eagerly through `torch.compiler.set_stance("force_eager")`.

Under this stance PyTorch compiles nothing and ignores the code that it has compiled. Afterwards it
uses this code again. The stance applies to all threads of the process.

Reads the current stance, which is private (2.11 to 2.15).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..hooks.watch import Installation


class EagerStance:
    """Context manager in which compiled functions run eagerly.

    Args:
        on_active: called once the stance is set.
        on_failure: called with the exception if the stance cannot be set, as inside a compiled
            function.
    """

    def __init__(
        self, on_active: Callable[[], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._on_active, self._on_failure = on_active, on_failure

    def __enter__(self) -> EagerStance:
        try:
            _INSTALLATION.add(self)
            self._on_active()
        except RuntimeError as error:
            self._on_failure(error)
        return self

    def __exit__(self, *_: object) -> None:
        _INSTALLATION.discard(self)


def is_forced_eager() -> bool:
    """Return True if `torch.compiler`'s stance is "force_eager" now, whoever set it."""
    stance = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return getattr(stance, "stance", None) == "force_eager"


_stances: list[Any] = []  # contains our stance while it is set


def _install() -> None:
    if not _stances:
        _stances.append(import_module("torch._dynamo").set_stance("force_eager"))


def _remove() -> None:
    while _stances:
        ours = _stances.pop()
        if import_module("torch._dynamo.eval_frame")._stance is ours.stance:
            # If the program has set another stance in the meantime, that stance is kept.
            ours.__exit__(None, None, None)


_INSTALLATION: Installation[EagerStance] = Installation(_install, _remove)
