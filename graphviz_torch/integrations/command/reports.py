"""Findings as text for a terminal, as JSON, and as SARIF for code scanning."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from ... import Finding, __version__, rules
from ...graph.terminal import PIPED, line_width
from ...graph.training.findings import steps_text
from ...graph.units import count_text
from .baseline import fingerprint, new_findings, read_baseline
from .files import colored

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MOST_FOLDERS = 5000  # to look through for a source file


def add_report(parser: argparse.ArgumentParser, fail_on: str) -> None:
    """Options of every command that reports findings."""
    parser.add_argument("--format", choices=FORMATS, help="of the report, on stdout")
    parser.add_argument("--wide", action="store_true", help="a line for each, however long")
    choices = ("error", "warning", "never")
    says = f"exit with 1 for a finding of this severity or worse (default {fail_on})"
    parser.add_argument("--fail-on", choices=choices, default=fail_on, help=says)
    parser.add_argument("--baseline", type=Path, help="findings in this file are known: left out")
    says = "write this file with what is found now, and exit with 0"
    parser.add_argument("--write-baseline", type=Path, metavar="BASELINE", help=says)


def known_findings(parsed: argparse.Namespace) -> Counter[str]:
    """The baseline, by fingerprint; nothing, where none is given or one is written.

    Raises:
        ValueError, OSError: as `read_baseline`.
    """
    if parsed.baseline is None or parsed.write_baseline is not None:
        return Counter()
    return read_baseline(parsed.baseline)


def judged(
    parsed: argparse.Namespace, found: Sequence[Finding], known: Counter[str]
) -> tuple[list[Finding], int]:
    """What is new beyond what is known, and the exit code for it."""
    new = new_findings(found, known)
    bad = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[parsed.fail_on]
    if parsed.write_baseline is not None:
        bad = ()
    return new, int(any(each.severity in bad for each in new))


def print_report(parsed: argparse.Namespace, found: Sequence[Finding]) -> None:
    """Print the report in the format that was asked for."""
    if parsed.format in (None, "text"):
        print(colored(to_lines(found, wide=parsed.wide), sys.stdout))
    else:
        print(FORMATS[parsed.format](found))


def to_lines(found: Sequence[Finding], *, wide: bool = False, steps: int = 1) -> str:
    """For a terminal: each finding with its advice, and how many there are.

    Args:
        found: of one recording, or of a run.
        wide: does a line go beyond the terminal.
        steps: how many steps the run has: a finding tells which of them have it.

    >>> print(to_lines([Finding("nan", "error", "loss is NaN.", "Lower the rate.")]))
    error: loss is NaN. [nan]
        Lower the rate.
    1 error
    """
    lines = []
    for each in found:
        lines.append(f"{each.severity}: {_plain(each.message)} [{each.rule}]")
        if each.advice:
            lines.append(f"    {_plain(each.advice)}")
        if said := steps_text(each, steps):
            lines.append(f"    {said[0].upper()}{said[1:]}.")
    if not wide:
        lines = [part for line in lines for part in _fitted(line)]
    return "\n".join([*lines, totals(found)])


def totals(found: Sequence[Finding]) -> str:
    """`"2 errors, 1 to know"`."""
    counts = Counter[str](each.severity for each in found)
    said = [count_text(counts[key], key) for key in ("error", "warning") if counts[key]]
    said += [f"{counts['info']} to know"] if counts["info"] else []
    return ", ".join(said) or "nothing found"


def to_json(found: Sequence[Finding]) -> str:
    """For programs: a list of findings, each with all its fields and a fingerprint."""
    fields = ("rule", "severity", "message", "advice", "cause", "where", "nodes", "transfers")
    rows = [
        {name: getattr(each, name) for name in fields} | {"fingerprint": fingerprint(each)}
        for each in found
    ]
    return json.dumps({"format": "graphviz_torch findings", "version": 1, "findings": rows})


def to_sarif(found: Sequence[Finding], root: Path | None = None) -> str:
    """For code scanning: SARIF 2.1.0. Files are looked for below `root`, or the current folder."""
    said = dict(rules())
    used = sorted({each.rule for each in found})
    where = _Files(root or Path.cwd())
    results = [_result(each, used.index(each.rule), where) for each in found]
    driver = {
        "name": "graphviz_torch",
        "version": __version__,
        "informationUri": "https://github.com/graphviz-torch/graphviz_torch",
        "rules": [
            {"id": rule, "shortDescription": {"text": said.get(rule) or rule}} for rule in used
        ],
    }
    runs = [{"tool": {"driver": driver}, "results": results}]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": runs})


FORMATS: dict[str, Callable[[Sequence[Finding]], str]] = {
    "text": to_lines,
    "json": to_json,
    "sarif": to_sarif,
}


def _result(finding: Finding, rule: int, where: _Files) -> dict[str, Any]:
    advice = f"\n{finding.advice}" if finding.advice else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message + advice},
        "partialFingerprints": {"graphvizTorch/v1": fingerprint(finding)},
    }
    file, _, line = finding.where.rpartition(":")
    if file and line.isdigit() and int(line) > 0:
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": where[file]},
                    "region": {"startLine": int(line)},
                }
            }
        ]
    return result


class _Files(dict[str, str]):
    """By the name that a finding has for a file: its address from the root, "src/train.py"."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __missing__(self, name: str) -> str:
        from urllib.parse import quote

        found = self[name] = quote(self._search(name))
        return found

    def _search(self, name: str) -> str:
        if (self._root / name).is_file():
            return name
        for count, (folder, folders, files) in enumerate(os.walk(self._root)):
            folders[:] = sorted(
                each
                for each in folders
                if not each.startswith(".") and each not in ("node_modules", "site-packages")
            )
            relative = os.path.relpath(folder, self._root)
            if Path(name).name in files and (Path(folder) / Path(name).name).as_posix().endswith(
                f"/{name}"
            ):
                return (Path(relative) / Path(name).name).as_posix()
            if count >= _MOST_FOLDERS:
                break
        return name


def _fitted(text: str) -> Iterator[str]:
    """Lines that fit the terminal, each after the first further in."""
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        yield from wrap(
            line,
            line_width() or PIPED,
            subsequent_indent=indent or "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _plain(text: str) -> str:
    """Text of a program's own, with escapes for what a terminal would obey."""
    lines = text.split("\n")
    return "\n    ".join(
        line if line.isprintable() else re.sub(r"[^ -~]", _escape, line) for line in lines
    )


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else repr(match[0])[1:-1]
