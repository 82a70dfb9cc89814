"""`graphviz-torch find` and `rule`: list problems in saved graphs, and print pages of rules."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ... import rules
from ...graph import Training
from ...graph.units import count_text
from ..excerpt import Lines, SourceReader, no_lines
from .files import PIPE, on_disk, read_saved, say
from .judge import Judge, write_baseline
from .reports import add_report, print_report, view_commands


def add_find(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `find`."""
    text = "a saved graph; the last of several successive steps is checked; - reads stdin"
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help=text)
    parser.add_argument(
        "--ranks", action="store_true", help="the files are of different ranks: compare them"
    )
    add_report(parser, fail_on="error")
    parser.set_defaults(run=_find)


def _find(parsed: argparse.Namespace) -> int:
    from ... import find

    *previous, last = [read_saved(file) for file in parsed.files]
    found = find([*previous, last]) if parsed.ranks else find(last, previous)
    source = _source(parsed.files[-1])
    judge = Judge(parsed, Path.cwd(), source)
    new = judge.filter(found)
    if parsed.write_baseline is not None:
        write_baseline(parsed.write_baseline, found)
    if isinstance(last, Training) and last.alternation and parsed.format in (None, "text"):
        say(f"{count_text(len(last.steps), 'step')}, {last.alternation}")
    print_report(parsed, new, source)
    for message in judge.remarks:
        say(f"graphviz-torch: {message}", file=sys.stderr)
    if new and parsed.format in (None, "text") and parsed.files[-1] != PIPE:
        say(f"See it: {view_commands(str(parsed.files[-1]))}")
    return judge.exit_code(new)


def _source(file: Path) -> Lines:
    """Return a reader of source files in the folder of the recording and in the current folder."""
    if file == PIPE:
        return no_lines
    file = on_disk(file)
    return SourceReader((file.parent, Path.cwd()), file.stat().st_mtime)


def add_rule(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rule`."""
    text = "the rule's id, as reports print it in brackets; without it, list all rules"
    parser.add_argument("id", nargs="?", metavar="ID", help=text)
    parser.set_defaults(run=_rule)


def _rule(parsed: argparse.Namespace) -> int:
    print(rules() if parsed.id is None else rules().by_id(parsed.id).to_markdown().rstrip())
    return 0
