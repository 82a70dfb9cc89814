"""`graphviz-torch rule`: print the page of a rule, or the table of all rules."""

from __future__ import annotations

import argparse

from .... import rules


def add_rule(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rule`."""
    text = "the rule's id, as reports print it in brackets; without it, list all rules"
    parser.add_argument("id", nargs="?", metavar="ID", help=text)
    parser.set_defaults(run=_rule)


def _rule(parsed: argparse.Namespace) -> int:
    print(rules() if parsed.id is None else rules().by_id(parsed.id).to_markdown().rstrip())
    return 0
