"""Run a script as `python SCRIPT` does, or a module as `python -m MODULE` does."""

from __future__ import annotations

import argparse
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


def add_script(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the arguments SCRIPT and ARGS, after all options of the command.

    Args:
        parser: the parser of the command.
        text: the help text of SCRIPT.
    """
    parser.add_argument("script", metavar="SCRIPT", help=text)
    text = "arguments of the script"
    arguments = parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help=text)
    # If this were True, the error of Python < 3.12 would also say that ARGS is missing.
    arguments.required = False
    options = [option for action in parser._actions for option in action.option_strings]
    parser.set_defaults(options=frozenset(options))


def late_options(parsed: argparse.Namespace) -> list[str]:
    """Return the options of the command that follow SCRIPT although the script does not name them.

    They are arguments of the script, but were probably meant for the command.
    """
    given = [word.partition("=")[0] for word in getattr(parsed, "args", ())]
    late = [word for word in given if word in getattr(parsed, "options", ())]
    if not late or parsed.module:
        return []
    try:
        source = Path(parsed.script).read_bytes()
    except OSError:  # reported when the script is run
        return []
    source = source.replace(b"-", b"_")  # a field `batch_size` may be the option --batch-size
    return [word for word in late if word.lstrip("-").replace("-", "_").encode() not in source]


class Script:
    """A script or module, which runs as `__main__`.

    `load()` compiles the code and installs the module `__main__`; `run()` executes the code. The
    module stays in `sys.modules` afterwards.

    Args:
        name: the path of a script, or the name of a module.
        arguments: the rest of `sys.argv`.
        module: whether `name` is a module's name.

    Raises:
        OSError: if the script cannot be read.
        ValueError: if the script is a folder, or the module cannot be found.
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
        # While `python -m` searches for the module, sys.argv[0] is "-m".
        argv, sys.argv = sys.argv, ["-m", *arguments]
        sys.path.insert(0, self._folder)
        try:
            self._spec = self._find(name)
        finally:
            sys.path.remove(self._folder)
            sys.argv = argv
        self.file = self._spec.origin or name

    def load(self) -> None:
        """Compile the script and install it as `__main__`.

        Raises:
            Exception: if the source cannot be compiled; usually a SyntaxError.
        """
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
        """Execute the loaded script. Exceptions of the script are not caught."""
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
    """Return the exit status for `SystemExit(code)`, and print `code` to stderr if it is a text."""
    if code is None or isinstance(code, int):
        return code or 0
    with suppress(Exception):
        print(code, file=sys.stderr or sys.__stderr__)
    return 1


def show_error(error: BaseException, file: str) -> int:
    """Print the traceback as Python does, from the script's first frame; return the exit status.

    Args:
        error: the exception that ended the script.
        file: path of the script.
    """
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
    """A counter of forked child processes that train.

    All processes share a memory map with one byte for each process id. A child sets its byte.
    """

    def __init__(self) -> None:
        self._marks = mmap.mmap(-1, 1 << 22)  # one byte for each process id of 64-bit Linux

    def mark(self) -> None:
        """Mark the calling process as one that trains."""
        self._marks[os.getpid() % len(self._marks)] = 1

    def report_text(self, *, alone: bool) -> str:
        """Return a clause with the number of child processes; "" if there are none.

        Args:
            alone: True if this process recorded nothing. In this case, if no forked child trained,
                the child processes that `multiprocessing` started are counted.
        """
        count, did = self._marks[:].count(1), "trained"
        if not count and alone and "multiprocessing" in sys.modules:
            # Spawned processes do not share the memory map, but are numbered in their names:
            # "Process-3".
            name = sys.modules["multiprocessing"].Process().name
            count, did = int(re.split("[-:]", name)[-1]) - 1, "were started"
        if not count:
            return ""
        one = did.replace("were", "was") if count == 1 else did
        noun = "process" if count == 1 else "processes"
        not_recorded = "was not recorded" if count == 1 else "were not recorded"
        return f"; {count} child {noun} {one} and {not_recorded}"
