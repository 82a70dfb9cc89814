"""`completion`: the commands and options for bash, zsh and fish, written from the parser itself."""

from __future__ import annotations

import argparse
import sys

_BASH = """\
_graphviz_torch() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words="{commands} --help --version"
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    if [[ $COMP_CWORD -eq 1 || $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    fi
}}
complete -o default -F _graphviz_torch graphviz-torch
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + _BASH


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Arguments of `completion`."""
    says = 'bash and zsh: eval "$(graphviz-torch completion bash)"; fish: pipe it to `source`'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=says)
    parser.set_defaults(run=_completion)


def _completion(parsed: argparse.Namespace) -> int:
    options = _options()
    if parsed.shell == "fish":
        lines = [
            f"complete -c graphviz-torch -n __fish_use_subcommand -a {name}" for name in options
        ]
        for name, flags in options.items():
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            lines += [f"complete -c graphviz-torch {seen} -l {flag[2:]}" for flag in flags]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    cases = "\n".join(
        f'        {name}) words="{" ".join(flags)}" ;;' for name, flags in options.items()
    )
    text = _ZSH if parsed.shell == "zsh" else _BASH
    sys.stdout.write(text.format(commands=" ".join(options), cases=cases))
    return 0


def _options() -> dict[str, list[str]]:
    """The long options of every command."""
    from .main import COMMANDS, parser

    # argparse has no public way to ask a parser for its options.
    [commands] = [a for a in parser(*COMMANDS)._actions if isinstance(a.choices, dict)]
    return {
        name: sorted(
            flag
            for action in command._actions
            for flag in action.option_strings
            if flag.startswith("--")
        )
        for name, command in dict(commands.choices or {}).items()
    }
