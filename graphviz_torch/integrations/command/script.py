"""Running a script as `python SCRIPT` does, and a module as `python -m MODULE` does."""

from __future__ import annotations

import io
import mmap
import os
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Script:
    """A program, found and read; `load()` makes it `__main__`, which it stays, `run()` runs it.

    Raises:
        OSError, ValueError: if it cannot be found or read.
    """

    def __init__(self, name: str, arguments: Sequence[str], *, module: bool) -> None:
        self._arguments = list(arguments)
        self._spec: ModuleSpec | None = None
        self._name = name
        if module:
            self._folder = str(Path.cwd())
        else:
            path = Path(name).absolute()
            if path.is_dir():
                raise ValueError(f"{name} is a folder: pass a script, or -m and a module's name.")
            with io.open_code(str(path)) as file:
                self._source = file.read()
            self.file, self._folder = str(path), str(path.resolve().parent)
            return
        argv, sys.argv = sys.argv, ["-m", *arguments]  # as a package reads it that Python imports
        sys.path.insert(0, self._folder)
        try:
            self._spec = self._find(name)
        finally:
            sys.path.remove(self._folder)
            sys.argv = argv
        self.file = self._spec.origin or name

    def load(self) -> None:
        """Compile it, in its place as `__main__`. What that raises comes out."""
        self._main = main = types.ModuleType("__main__")
        main.__dict__.update(__file__=self.file, __builtins__=__builtins__)
        sys.path.insert(0, self._folder)
        sys.modules["__main__"] = main
        if self._spec is None:
            sys.argv = [self._name, *self._arguments]
            main.__dict__.update(
                __loader__=SourceFileLoader("__main__", self.file), __cached__=None
            )
            self._code = compile(self._source, self.file, "exec", dont_inherit=True)
        else:
            sys.argv = [self.file, *self._arguments]
            loader = self._spec.loader
            main.__dict__.update(
                __spec__=self._spec,
                __loader__=loader,
                __package__=self._spec.parent,
                __cached__=self._spec.cached,
            )
            self._code = loader.get_code(self._spec.name)  # type: ignore[union-attr]

    def run(self) -> None:
        """Run it, once it is loaded. What it raises comes out."""
        exec(self._code, self._main.__dict__)

    @staticmethod
    def _find(name: str) -> ModuleSpec:
        try:
            spec = find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = find_spec(f"{name}.__main__")
        except ImportError as error:
            raise ValueError(f"no module named {name} can be run: {error}.") from None
        if spec is None or not hasattr(spec.loader, "get_code"):
            raise ValueError(f"no module named {name} can be run.")
        return spec


def exit_status(code: Any) -> int:
    """The status of a process that raises `SystemExit(code)`; a message is shown, as by Python."""
    if code is None or isinstance(code, int):
        return code or 0
    with suppress(Exception):
        print(code, file=sys.stderr or sys.__stderr__)
    return 1


def show_error(error: BaseException, file: str) -> int:
    """Show a traceback as Python would have, from the script on. Returns the process's status."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as second:
        with suppress(Exception):
            sys.stderr.write("Error in sys.excepthook:\n")
            _show(second.with_traceback(second.__traceback__ and second.__traceback__.tb_next))
            sys.stderr.write("\nOriginal exception was:\n")
            _show(error)
    return 1


def _show(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)


class Children:
    """The processes that are forked from this one: each that trains marks a byte that all share."""

    def __init__(self) -> None:
        self._marks = mmap.mmap(-1, 1 << 22)  # Linux numbers no more processes

    def mark(self) -> None:
        """Count the process that asks."""
        self._marks[os.getpid() % len(self._marks)] = 1

    def said(self, *, alone: bool) -> str:
        """What a report says of them; of those that trained or not, where they ran `alone`."""
        count, did = self._marks[:].count(1), "trained"
        if not count and alone and "multiprocessing" in sys.modules:
            # A process that was not forked cannot be asked. They are numbered: "Process-3".
            name = sys.modules["multiprocessing"].Process().name
            count, did = int(re.split("[-:]", name)[-1]) - 1, "were started"
        if not count:
            return ""
        one = did.replace("were", "was") if count == 1 else did
        noun = "process" if count == 1 else "processes"
        not_recorded = "was not recorded" if count == 1 else "were not recorded"
        return f"; {count} child {noun} {one} and {not_recorded}"
