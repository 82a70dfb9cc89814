"""`completion`: the commands, options and values for a shell, written by shtab from the parser."""

from __future__ import annotations

import argparse

_SHELLS = ("bash", "zsh", "fish")


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Arguments of `completion`."""
    says = 'bash and zsh: eval "$(graphviz-torch completion bash)"; fish: pipe it to `source`'
    parser.add_argument("shell", choices=_SHELLS, help=says)
    parser.set_defaults(run=_completion)


def _completion(parsed: argparse.Namespace) -> int:
    import shtab

    from .main import COMMANDS, parser

    made = parser(*COMMANDS)
    # argparse has no public way to ask a parser for its arguments.
    [commands] = [a.choices for a in made._actions if isinstance(a, argparse._SubParsersAction)]
    for command in commands.values():
        for action in command._actions:
            if action.nargs != 0 and not action.choices:  # its value may be a file
                action.complete = shtab.FILE
    print(shtab.complete(made, parsed.shell))
    return 0
