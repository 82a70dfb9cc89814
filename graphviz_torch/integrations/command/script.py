"""Running a script as `python SCRIPT` does, and a module as `python -m MODULE` does."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path


class Script:
    """A program, found and read; `run()` runs it as `__main__`, which it stays.

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
        sys.path.insert(0, self._folder)
        try:
            self._spec = self._find(name)
        finally:
            sys.path.remove(self._folder)
        self.file = self._spec.origin or name

    def run(self) -> None:
        """Run it. What it raises comes out."""
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=self.file, __builtins__=__builtins__)
        sys.path.insert(0, self._folder)
        sys.modules["__main__"] = main
        if self._spec is None:
            sys.argv = [self._name, *self._arguments]
            main.__dict__.update(
                __loader__=SourceFileLoader("__main__", self.file), __cached__=None
            )
            code = compile(self._source, self.file, "exec", dont_inherit=True)
        else:
            sys.argv = [self.file, *self._arguments]
            loader = self._spec.loader
            main.__dict__.update(
                __spec__=self._spec,
                __loader__=loader,
                __package__=self._spec.parent,
                __cached__=self._spec.cached,
            )
            code = loader.get_code(self._spec.name)  # type: ignore[union-attr]
        exec(code, main.__dict__)

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


def shown(error: BaseException, file: str) -> None:
    """Show a traceback as Python would have, from the script on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
