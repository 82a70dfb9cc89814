"""Suppress the side effects of a forward that is run again.

    prints, log records     dropped
    files                   opening a file for writing, or writing to a file that a module has open,
                            raises `SideEffectError`: the run ends there and nothing is written

This applies only to the thread of the run. Files that PyTorch itself writes, such as the compiler's
files, are allowed.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from ..frames import OTHER, TORCH, code_owner
from .snapshot import Snapshot


class SideEffectError(Exception):
    """Exception that stops a forward before it does something that cannot be undone.

    Args:
        does: the side effect, such as "writes to the file log.txt".
    """

    def __init__(self, does: str) -> None:
        super().__init__(does)
        self.does = does


class _SilencedOutput:
    """A stream that drops the output of one thread."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        """Drop text that the thread writes; pass on text that other threads write."""
        if threading.get_ident() != self._thread and self._stream is not None:
            return int(self._stream.write(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class SideEffects:
    """A filter that suppresses or refuses the side effects of a forward that runs again.

    Args:
        contents: snapshot of the modules' state; open files in it are made read-only.
    """

    def __init__(self, contents: Snapshot) -> None:
        self.refused: SideEffectError | None = None
        self._contents = contents
        self._thread = threading.get_ident()

    @contextmanager
    def context(self) -> Iterator[None]:
        """Suppress or refuse side effects inside this context."""
        opens, handlers = builtins.open, logging.Logger.callHandlers
        thread = self._thread

        def open_file(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            writes = isinstance(mode, str) and not set("wax+").isdisjoint(mode)
            if writes and threading.get_ident() == thread and not _of_torch(sys._getframe(1)):
                self.refuse(f"opens the file {_name(file)} to write to it")
            return opens(file, mode, *args, **kwargs)

        def log(logger: Any, record: Any) -> None:
            if threading.get_ident() != thread:
                handlers(logger, record)

        out, err = _SilencedOutput(sys.stdout, thread), _SilencedOutput(sys.stderr, thread)
        files = list(self._contents.files())
        builtins.open = io.open = open_file
        logging.Logger.callHandlers = log  # type: ignore[assignment,method-assign]
        for container, key in files:  # restored later, together with the modules' other state
            container[key] = _ReadOnlyFile(self, container[key])
        try:
            with redirect_stdout(out), redirect_stderr(err):
                yield
        finally:
            builtins.open = io.open = opens
            logging.Logger.callHandlers = handlers  # type: ignore[method-assign]

    def refuse(self, does: str) -> None:
        """Stop the run by raising `SideEffectError`.

        Args:
            does: the side effect, such as "writes to the file log.txt".
        """
        self.refused = SideEffectError(does)
        raise self.refused


class _ReadOnlyFile:
    """A proxy of an open file that refuses to write."""

    def __init__(self, effects: SideEffects, file: Any) -> None:
        self._effects, self._file = effects, file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("write"):
            name = _name(getattr(self._file, "name", ""))
            self._effects.refuse(f"writes to the file {name}".rstrip())
        return getattr(self._file, name)


def _name(file: Any) -> str:
    return Path(file).name if isinstance(file, (str, Path)) else str(file)


def _of_torch(frame: FrameType | None) -> bool:
    """Return True if PyTorch is the innermost caller outside of the standard library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(TORCH):
            return True
        if code_owner(file) != OTHER:
            return False
        frame = frame.f_back
    return False
