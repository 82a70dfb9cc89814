"""Find the running module and source line while a forward is run again."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any

from torch.nn import Module

from ..frames import LIBRARY, OTHER, OWN, CodePosition, code_owner
from ..hooks.modules import ModuleBegan, ModuleEnded, ModuleWatch

_FUNCTIONAL = "nn/functional.py"


class RunningModules:
    """Context manager that tracks which module is running.

    Args:
        root: the module whose submodules are given by their paths.
    """

    def __init__(self, root: Module) -> None:
        self._names = {id(module): name for name, module in root.named_modules()}
        self._running: list[tuple[str, str, Any]] = []
        self._watch = ModuleWatch(self._on_begin, self._on_end)

    def __enter__(self) -> RunningModules:
        self._watch.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()

    def current(self) -> tuple[str, str]:
        """Return (path, classes) of the running module, such as ("1.fc", "Net/Block/Linear").

        The classes are those of all running modules, outermost first.
        """
        return self._running[-1][:2] if self._running else ("", "")

    def _on_begin(self, event: ModuleBegan) -> None:
        name = self._names.get(id(event.module))
        path, classes = self.current()
        cls = type(event.module).__name__
        self._running.append(
            (path if name is None else name, f"{classes}/{cls}" if classes else cls, event.module)
        )

    def _on_end(self, event: ModuleEnded) -> None:
        while self._running and self._running.pop()[2] is not event.module:
            pass


def code_positions(
    frame: FrameType | None, last: CodeType
) -> tuple[CodePosition | None, CodePosition | None, tuple[str, ...]]:
    """Return the code positions of a call, from `frame` outwards to the frame that runs `last`.

    Returns:
        The innermost position outside of PyTorch and the standard library; the innermost position
        in the user's own code; and the running functions of torch.nn.functional.
    """
    place = user = None
    functions: list[str] = []
    while frame is not None and frame.f_code is not last:
        code = frame.f_code
        whose = code_owner(code.co_filename)
        if whose == OTHER and place is None and code.co_filename.endswith(_FUNCTIONAL):
            functions.append(code.co_name)
        if whose in (OWN, LIBRARY) and place is None:
            place = code, frame.f_lasti
        if whose == OWN:
            user = code, frame.f_lasti
            break
        frame = frame.f_back
    return place, user, tuple(functions)
