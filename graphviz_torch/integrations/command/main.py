"""The command `graphviz-torch`: record a script; view, check, compare and export saved graphs.

Exit codes: 1 if there is a finding or difference that `--fail-on` names, 2 if the command failed,
else 0. `run` returns the exit code of its script, or 2 if nothing was recorded. Only `run`,
`rehearse` and `app` import torch.
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
from ...graph.text import listing, printable
from .formats import FORMATS

_DONE, _FAILED = 0, 2

# (group, example) -> command -> (module that defines the command, summary).
GROUPS = {
    ("Record", "graphviz-torch run -o run.json.gz train.py"): {
        "run": ("run", "Run a script unchanged, record its training steps, report problems."),
        "rehearse": ("rehearse", "Estimate each rank's memory and traffic, without GPUs."),
        "app": ("app", "Open the app in a browser, served on this machine only."),
    },
    ("Look", "graphviz-torch find run.json.gz"): {
        "find": ("find", "List a graph's problems; exit with 1 if there is an error."),
        "rule": ("find", "Print a rule's page: why it matters, an example, the repair."),
        "explain": ("pictures", "Print the gradient's path from the loss to a parameter."),
        "view": ("pictures", "Open the interactive view of a graph in a browser."),
        "draw": ("pictures", FORMATS["draw"].help),
        "summary": ("pictures", "Print each module's FLOPs, saved memory, gradients and time."),
    },
    ("Compare and export", "graphviz-torch export --to html run.json.gz"): {
        "diff": (
            "diff",
            "Compare two steps, with gradients; exit with 1 if they differ.",
        ),
        "export": ("pictures", "Convert a graph to html, mermaid, text, dot, flow, tensorboard."),
        "completion": ("main", "Print a script that completes this command in your shell."),
    },
}
# Task -> command line for it. The help lists the tasks below the commands.
TASKS = {
    "a picture of a step": "graphviz-torch run -o step.svg train.py",
    "NaN, nothing learns": "graphviz-torch run train.py  (--steps 0: all steps)",
    "memory, FLOPs, time": "graphviz-torch run --notes -o run.json.gz train.py",
    "copies, without a GPU": "graphviz-torch run --simulate 2 train.py",
    "does it fit on 64 ranks": "graphviz-torch rehearse --ranks 64 train.py",
    "DDP, FSDP: who waits": "torchrun --no-python graphviz-torch run train.py",
    "fail a build (CI)": "graphviz-torch run --fail-on warning train.py",
    "silence a rule": "--ignore RULE, or `# gt: ignore[RULE]` at the line",
    "compare two steps": "graphviz-torch diff before.json.gz after.json.gz",
    "in a notebook": "%load_ext graphviz_torch, then %%record model",
    "tutorial, guides, rules": "https://graphviz-torch.github.io/graphviz_torch/",
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the arguments after "graphviz-torch". None takes them from `sys.argv`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Escape characters that the stream cannot encode, except in `run`, whose script may write other
    # data to the streams.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and given[:1] != ["run"]:
            reconfigure(errors="backslashreplace")
    try:
        parsed = parser(
            next((word for word in given if word in COMMANDS), ""), arguments=given
        ).parse_args(given)
        run: Callable[[argparse.Namespace], int] = parsed.run
        if hasattr(parsed, "options"):
            _note_late_options(parsed)
        if given[:1] == ["run"]:  # the script calls Python functions, not the command
            return run(parsed)
        with in_shell():
            return run(parsed)
    except BrokenPipeError:  # a pager, for example, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DONE
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        print(f"graphviz-torch: {printable(sentence(error), lines=True)}", file=sys.stderr)
        return _FAILED


def _note_late_options(parsed: argparse.Namespace) -> None:
    """Print a note about options of the command that follow the script, which gets them."""
    from .script import late_options

    if late := late_options(parsed):
        text = f"{parsed.script} gets {listing(late)}; options of this command come before SCRIPT"
        print(f"graphviz-torch: {printable(text)}", file=sys.stderr)


# Word that a user may type -> command that the error message suggests instead.
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
    """An argument parser whose error is one sentence, with a suggestion for a wrong word."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(invalid choice: '|unrecognized arguments: )([\w-]+)", message)
        near = get_close_matches(wrong[2], [*self._words(), *_SYNONYMS], 1) if wrong else []
        hint = f". Did you mean {_SYNONYMS.get(near[0], near[0])}?" if near else ";"
        line = message.partition(" (choose from")[0] if near or "COMMAND" in message else message
        for action in self._actions:  # add the help text of a missing argument
            if "required" in message and action.metavar and action.help:
                about = f"{action.metavar}, {action.help.partition(';')[0]}"
                line = re.sub(rf"\b{re.escape(str(action.metavar))}$", about, line)
        line = printable(f"{self.prog}: {line}{hint} {self.prog} --help lists the choices.")
        self.exit(_FAILED, f"{line}\n")

    def _words(self) -> list[str]:
        """Return all commands, options and values of options."""
        # argparse has no public API for these.
        words = list(self._option_string_actions)
        for action in self._actions:
            words += list(map(str, action.choices or ()))
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    words += inner._option_string_actions
        return words


class _CommandsParser(_Parser):
    """The top-level parser, whose help lists the commands in groups, each with an example."""

    def format_help(self) -> str:
        lines = [
            "usage: graphviz-torch COMMAND ...",
            "",
            "Show a PyTorch program's autograd graph, its cost, and its problems.",
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
        names: commands whose own arguments are added. The other commands are only listed.
        arguments: the command line, whose output format decides which options `export` has.
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
    """Return the message of an error; for an error of the operating system, one sentence."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        name = printable(str(error.filename))
        # Errors with ENOENT that this package raises have another text, which is kept.
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
            if action.nargs != 0 and not action.choices:  # the value of this option may be a file
                action.complete = shtab.FILE
    print(shtab.complete(made, parsed.shell))
    return 0
