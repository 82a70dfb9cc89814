"""The command `graphviz-torch`: record a script; draw, read, judge and compare saved graphs.

Exit codes: 0 done; 1 what `--fail-on` names was found; 2 it could not be done. `run` has the exit
code of its script. Only `run`, `rehearse` and `app` load torch.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from ... import __version__
from ...graph.terminal import in_shell
from .forms import FORMS

_DONE, _FAILED = 0, 2

# Each command: the file that has it, and what it does.
COMMANDS = {
    "run": ("run", "Run a script unchanged, record its training steps, and report what is wrong."),
    "rehearse": (
        "rehearsal.rehearse",
        "Estimate what a script's step needs on each of many ranks, without GPUs or a network.",
    ),
    **{name: ("pictures", form.says) for name, form in FORMS.items()},
    "view": ("pictures", "Open the interactive view of a graph in a browser."),
    "summary": ("summary", "Print a table by module: parameters, FLOPs, memory, gradients, time."),
    "tensorboard": ("pictures", "Write a graph for TensorBoard's Graphs tab."),
    "find": (
        "findings.find",
        "List what is wrong in a recording; exit code 1 if there is an error.",
    ),
    "rule": ("findings.rule", "Print the page of a rule: why it matters, an example, its repair."),
    "explain": ("explain", "Trace the gradient's path to a parameter or a node."),
    "diff": ("diff", "Compare two graphs; exit code 1 if they differ."),
    "app": ("app", "Open the app in a browser, on this machine only."),
    "completion": ("main", "Print a shell's completion script for this command."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; `arguments` default to those of the process. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a letter is shown its escape
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and given[:1] != ["run"]:  # a script's stdout is its own
            reconfigure(errors="backslashreplace")
    try:
        parsed = parser(next((word for word in given if word in COMMANDS), "")).parse_args(given)
        run: Callable[[argparse.Namespace], int] = parsed.run
        if given[:1] == ["run"]:  # what a script prints is not the answer to a command
            return run(parsed)
        with in_shell():
            return run(parsed)
    except BrokenPipeError:  # the reader, a pager say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DONE
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        print(f"graphviz-torch: {sentence(error)}", file=sys.stderr)
        return _FAILED


class _Parser(argparse.ArgumentParser):
    """A parser that says in one sentence what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(invalid choice: '|arguments: )([\w-]+)", message)
        near = get_close_matches(wrong[2], self._words(), 1) if wrong else []
        hint = f". Did you mean {near[0]}?" if near else ";"
        said = message.partition(" (choose from")[0] if near else message
        self.exit(_FAILED, f"{self.prog}: {said}{hint} {self.prog} --help lists what there is.\n")

    def _words(self) -> list[str]:
        """The commands, options and values that there are."""
        # argparse has no public way to ask a parser for these.
        words = list(self._option_string_actions)
        for action in self._actions:
            words += list(map(str, action.choices or ()))
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    words += inner._option_string_actions
        return words


def parser(*names: str) -> argparse.ArgumentParser:
    """The parser of all commands; those named have their arguments too, the others are listed."""
    made = _Parser(
        "graphviz-torch",
        description="Record a script; draw, read, judge and compare saved graphs.",
    )
    made.add_argument("--version", action="version", version=f"graphviz-torch {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for name, (file, says) in COMMANDS.items():
        added = commands.add_parser(name, help=says, description=says)
        if name in names:
            add = "form" if name in FORMS else name
            getattr(import_module(f".{file}", __package__), f"add_{add}")(added)
    return made


def sentence(error: Exception) -> str:
    """What went wrong, for a terminal."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        # Not of ours, which says of this errno what is missing.
        if error.strerror == os.strerror(errno.ENOENT):
            here = "" if os.path.isabs(error.filename) else f" in {os.getcwd()}"
            return f"{error.filename}: there is no such file{here}; check its name."
        return f"{error.filename}: {error.strerror}."
    return str(error)


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Arguments of `completion`."""
    says = 'bash and zsh: eval "$(graphviz-torch completion bash)"; fish: pipe it to `source`'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=says)
    parser.set_defaults(run=_completion)


def _completion(parsed: argparse.Namespace) -> int:
    import shtab

    made = parser(*COMMANDS)
    # argparse has no public way to ask a parser for its arguments.
    [commands] = [a.choices for a in made._actions if isinstance(a, argparse._SubParsersAction)]
    for command in commands.values():
        for action in command._actions:
            if action.nargs != 0 and not action.choices:  # its value may be a file
                action.complete = shtab.FILE
    print(shtab.complete(made, parsed.shell))
    return 0
