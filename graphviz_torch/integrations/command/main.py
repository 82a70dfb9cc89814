"""The command `graphviz-torch`: record a script; view, check, compare and export saved graphs.

Exit codes: 0 done; 1 a finding or difference that `--fail-on` names; 2 the command failed. `run`
returns the exit code of its script, or 2 if nothing was recorded. Only `run`, `rehearse` and `app`
import torch.
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
from ...graph.text import printable
from .formats import FORMATS

_DONE, _FAILED = 0, 2

# Groups of commands, each with an example line: the file that has the command, and its summary.
GROUPS = {
    ("Record", "graphviz-torch run -o run.json.gz train.py"): {
        "run": ("run", "Run a script unchanged, record its training steps, report problems."),
        "rehearse": (
            "rehearsal.rehearse",
            "Estimate the memory and traffic of each of many ranks.",
        ),
        "app": ("app", "Open the app in a browser, on this machine only."),
    },
    ("Look", "graphviz-torch find run.json.gz"): {
        "find": ("findings.find", "List problems; exit code 1 if there is an error."),
        "rule": ("findings.rule", "Print a rule's page: why it matters, an example, its repair."),
        "explain": ("explain", "Trace the gradient's path to a parameter or a node."),
        "view": ("pictures", "Open the interactive view of a graph in a browser."),
        "draw": ("pictures", FORMATS["draw"].help),
        "summary": ("summary", "Print a table by module: FLOPs, memory, gradients, time."),
    },
    ("Compare and export", "graphviz-torch export --to html run.json.gz"): {
        "diff": ("diff", "Compare two graphs; exit code 1 if they differ."),
        "export": ("pictures", "Write html, mermaid, text, dot, flow or tensorboard."),
        "completion": ("main", "Print a shell's completion script for this command."),
    },
}
# Shown below the commands: what a user wants, and what to type.
TASKS = {
    "a picture of a step": "graphviz-torch run -o step.svg train.py",
    "NaN, stuck, out of memory": "graphviz-torch run train.py",
    "copies, without a GPU": "graphviz-torch run --simulate 2 train.py",
    "does it fit on 64 ranks": "graphviz-torch rehearse train.py --ranks 64",
    "DDP, FSDP": "torchrun --no-python graphviz-torch run train.py",
    "fail a build (CI)": "graphviz-torch run --fail-on warning train.py",
    "silence a rule": "--ignore RULE, or `# gt: ignore[RULE]` at the line",
    "compare two runs": "graphviz-torch diff before.json.gz after.json.gz",
    "in a notebook": "%load_ext graphviz_torch, then %%record",
    "tutorial, guides, rules": "https://graphviz-torch.github.io/graphviz_torch/",
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args: arguments: words of the command line; None takes them from `sys.argv`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):  # print escapes for letters outside its encoding
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and given[:1] != ["run"]:  # `run` leaves the script's stdout
            reconfigure(errors="backslashreplace")
    try:
        parsed = parser(
            next((word for word in given if word in COMMANDS), ""), arguments=given
        ).parse_args(given)
        run: Callable[[argparse.Namespace], int] = parsed.run
        if given[:1] == ["run"]:  # the script's own messages keep their Python wording
            return run(parsed)
        with in_shell():
            return run(parsed)
    except BrokenPipeError:  # the reader, such as a pager, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DONE
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        print(f"graphviz-torch: {printable(sentence(error), lines=True)}", file=sys.stderr)
        return _FAILED


# Command names of other tools -> our command for the same purpose.
_SYNONYMS = {
    "search": "find",
    "check": "find",
    "lint": "find",
    "report": "find",
    "show": "view",
    "open": "view",
    "plot": "draw",
    "render": "draw",
    **dict.fromkeys(("html", "mermaid", "text", "flow", "tensorboard", "print"), "export"),
    "compare": "diff",
    "record": "run",
    "train": "run",
    "why": "explain",
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence with a suggestion."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(invalid choice: '|unrecognized arguments: )([\w-]+)", message)
        near = get_close_matches(wrong[2], [*self._words(), *_SYNONYMS], 1) if wrong else []
        hint = f". Did you mean {_SYNONYMS.get(near[0], near[0])}?" if near else ";"
        line = message.partition(" (choose from")[0] if near or "COMMAND" in message else message
        for action in self._actions:  # add the help of a missing argument to argparse's message
            if "required" in message and action.metavar and action.help:
                about = f"{action.metavar}, {action.help.partition(';')[0]}"
                line = re.sub(rf"\b{re.escape(str(action.metavar))}$", about, line)
        line = printable(f"{self.prog}: {line}{hint} {self.prog} --help lists the choices.")
        self.exit(_FAILED, f"{line}\n")

    def _words(self) -> list[str]:
        """Return all commands, options and option values."""
        # argparse has no public API for a parser's options and commands.
        words = list(self._option_string_actions)
        for action in self._actions:
            words += list(map(str, action.choices or ()))
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    words += inner._option_string_actions
        return words


class _CommandsParser(_Parser):
    """The top-level parser, whose help lists commands by group with an example each."""

    def format_help(self) -> str:
        lines = [
            "usage: graphviz-torch COMMAND ...",
            "",
            "Show what autograd recorded of a PyTorch program, its cost, and problems.",
            "",
        ]
        for (title, example), commands in GROUPS.items():
            lines.append(f"{title}:")
            lines += [f"  {name:<12}{summary}" for name, (_, summary) in commands.items()]
            lines += [f"  {'':<12}$ {example}", ""]
        lines += ["Tasks:", *(f"  {task:<27}{typed}" for task, typed in TASKS.items()), ""]
        lines.append("COMMAND --help lists the options of a command; --version prints the version.")
        return "\n".join(lines) + "\n"


def parser(*names: str, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        names: commands whose arguments are added; the others are only listed.
        arguments: the command line; the format that it names decides the options of `export`.
    """
    made = _CommandsParser("graphviz-torch")
    made.add_argument("--version", action="version", version=f"graphviz-torch {__version__}")
    commands = made.add_subparsers(
        required=True, metavar="COMMAND", prog="graphviz-torch", parser_class=_Parser
    )
    for name, (file, summary) in COMMANDS.items():
        added = commands.add_parser(name, help=summary, description=summary)
        if name in names:
            add = getattr(import_module(f".{file}", __package__), f"add_{name}")
            add(added, arguments) if name == "export" else add(added)
    return made


def sentence(error: Exception) -> str:
    """Return an error's message for a terminal, in one sentence."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        name = printable(str(error.filename))
        # Our own errors with this errno have a message of their own.
        if error.strerror == os.strerror(errno.ENOENT):
            here = "" if os.path.isabs(error.filename) else f" in {os.getcwd()}"
            return f"{name}: there is no such file{here}; check its name."
        return f"{name}: {error.strerror}."
    return str(error)


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    text = 'bash and zsh: eval "$(graphviz-torch completion bash)"; fish: pipe it to `source`'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=text)
    parser.set_defaults(run=_completion)


def _completion(parsed: argparse.Namespace) -> int:
    import shtab

    made = parser(*COMMANDS)
    # argparse has no public API for a parser's arguments.
    [commands] = [a.choices for a in made._actions if isinstance(a, argparse._SubParsersAction)]
    for command in commands.values():
        for action in command._actions:
            if action.nargs != 0 and not action.choices:  # the value may be a file name
                action.complete = shtab.FILE
    print(shtab.complete(made, parsed.shell))
    return 0
