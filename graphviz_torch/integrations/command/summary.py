"""`graphviz-torch summary`: print one row for each module, as a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from ...export import Summary
from .files import read_saved, say
from .options import add_options, given_options
from .pictures import FILE


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `summary`."""
    from ... import summary

    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    add_options(parser, summary)
    text = "show all columns, even if lines get longer than the terminal"
    parser.add_argument("--wide", action="store_true", help=text)
    text = "format of the table on stdout (default text)"
    parser.add_argument("--format", choices=("text", *FORMATS), default="text", help=text)
    parser.set_defaults(run=_summary)


def _summary(parsed: argparse.Namespace) -> int:
    from ... import summary

    made = summary(read_saved(parsed.file), **given_options(parsed, summary))
    if parsed.format == "text":
        say(made.to_text(wide=parsed.wide))
    else:
        say(FORMATS[parsed.format](made))
    return 0


def _csv(made: Summary) -> str:
    rows, out = made.rows(), io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Summary], str]] = {
    "json": lambda made: json.dumps(made.rows()),
    "csv": _csv,
}
