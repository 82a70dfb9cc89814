"""The seam of `torch.compiler.set_stance`: compiled functions run as they are written.

While the stance is "force_eager" PyTorch leaves alone what it has compiled, compiles nothing, and
afterwards uses the same code again. The stance holds for every thread of the process.

Private: the stance as it is now (2.11 to 2.15).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..hooks.watch import Installation


class EagerStance:
    """A context in which compiled functions run as they are written.

    Args:
        told: called where it is so.
        miss: told the error where it is not: PyTorch takes no stance inside a compiled function.
    """

    def __init__(self, told: Callable[[], None], miss: Callable[[Exception], None]) -> None:
        self._told, self._miss = told, miss

    def __enter__(self) -> EagerStance:
        try:
            _INSTALLATION.add(self)
            self._told()
        except RuntimeError as error:
            self._miss(error)
        return self

    def __exit__(self, *_: object) -> None:
        _INSTALLATION.discard(self)


def runs_as_written() -> bool:
    """Does a compiled function that is called now run as it is written, whoever asked for it."""
    stance = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return getattr(stance, "stance", None) == "force_eager"


_stances: list[Any] = []  # ours, while somebody asks for it


def _install() -> None:
    if not _stances:
        _stances.append(import_module("torch._dynamo").set_stance("force_eager"))


def _remove() -> None:
    while _stances:
        ours = _stances.pop()
        if import_module("torch._dynamo.eval_frame")._stance is ours.stance:
            ours.__exit__(None, None, None)  # else the program has chosen another one meanwhile


_INSTALLATION: Installation[EagerStance] = Installation(_install, _remove)
