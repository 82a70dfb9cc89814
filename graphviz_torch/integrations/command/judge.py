"""Silence findings: by command options, by the project's configuration, by comments in the source.

The configuration is the table `[tool.graphviz_torch]` of the nearest `pyproject.toml` that has one:

    [tool.graphviz_torch]
    ignore = ["pageable-copy"]  # rules not to report
    select = ["cut-gradient"]   # the only rules to report

A comment `# gt: ignore[pageable-copy]` at the end of a line silences the findings of that line.

A baseline is a file with known findings, which a command leaves out of its report. Two findings are
the same if their rules, file names and messages are equal, apart from line numbers and measured
numbers. Numbers in names are compared: "layers.1" differs from "layers.2".
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ... import Finding, rules
from ...graph import Severity
from ...graph.files.file import json_of
from ...graph.files.limits import Limits
from ...graph.files.replacement import replacement
from ...graph.text import type_text
from ...graph.units import count_text
from ..excerpt import Lines

_TABLE = "[tool.graphviz_torch]"
_KEYS = ("ignore", "select")
_COMMENT = re.compile(r"#\s*gt:\s*ignore\[([^\]]*)\]")


class Judge:
    """The filter of a command's findings, which also decides the command's exit code.

    Args:
        parsed: the command's arguments, including those that `add_report` adds.
        folder: folder in which the search for `pyproject.toml` begins. It continues in the parent
            folders.
        source: returns the lines of a source file by its name. Comments in these lines may silence
            findings.

    Raises:
        ValueError: if an id is not that of a rule, or the configuration or the baseline is
            malformed.
        OSError: if the configuration or the baseline cannot be read.
    """

    def __init__(self, parsed: argparse.Namespace, folder: Path, source: Lines) -> None:
        configured = configuration(folder)
        selected = _split(parsed.select) or configured.get("select")
        self._select = None if selected is None else _check_ids(selected)
        self._ignore = _check_ids([*configured.get("ignore", ()), *_split(parsed.ignore)])
        reads = parsed.baseline is not None and parsed.write_baseline is None
        self._known = read_baseline(parsed.baseline) if reads else None
        never = parsed.write_baseline is not None or parsed.fail_on == "never"
        self._fail_on: Severity | None = None if never else parsed.fail_on
        self._source = source
        self._mistyped: dict[str, None] = {}  # messages about comments with unknown ids of rules
        self._silenced: set[tuple[str, str]] = set()  # (rule, line) of silenced findings

    def filter(self, found: Iterable[Finding]) -> list[Finding]:
        """Return the findings that are neither silenced nor in the baseline, in their order."""
        found = [each for each in found if self._select is None or each.rule in self._select]
        wanted = [
            each for each in found if each.rule not in self._ignore and not self._is_silenced(each)
        ]
        self._silenced.update({(each.rule, each.where) for each in found if each not in wanted})
        return wanted if self._known is None else new_findings(wanted, self._known)

    @property
    def remarks(self) -> list[str]:
        """Messages about silenced findings, and about comments with unknown rule ids."""
        ids = sorted({rule for rule, _ in self._silenced})
        text = f"{count_text(len(self._silenced), 'finding')} silenced: {', '.join(ids)}"
        return [text] * bool(ids) + list(self._mistyped)

    def exit_code(self, reported: Iterable[Finding]) -> int:
        """Return 1 if a finding has at least the severity that `--fail-on` names, else 0."""
        least = self._fail_on
        return int(least is not None and any(each.is_at_least(least) for each in reported))

    def _is_silenced(self, finding: Finding) -> bool:
        name, _, number = finding.where.rpartition(":")
        if not name or not number.isdecimal():
            return False
        lines = self._source(name)
        line = lines[int(number) - 1] if 0 < int(number) <= len(lines) else ""
        ids = {id for part in _COMMENT.findall(line) for id in _split([part])}
        for id in ids - {finding.rule}:
            try:
                rules().by_id(id)
            except ValueError as error:
                self._mistyped[f"{finding.where}: {error}"] = None
        return finding.rule in ids


def configuration(folder: Path) -> dict[str, list[str]]:
    """Return the table `[tool.graphviz_torch]` of the nearest `pyproject.toml`; {} if none has it.

    Raises:
        ValueError: if the file is not TOML, or the table contains anything but lists of ids.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if "tool.graphviz_torch" in text:
            return _table(file, text)
    return {}


def _table(file: Path, text: str) -> dict[str, list[str]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: Any = tomllib.loads(text).get("tool", {}).get("graphviz_torch", {})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: {error}") from None
    for key, value in table.items():
        if key not in _KEYS:
            raise ValueError(f"{file}: {_TABLE} has no key {key!r}: use {' or '.join(_KEYS)}.")
        if not isinstance(value, list) or not all(isinstance(id, str) for id in value):
            given = type_text(value)
            raise ValueError(f"{file}: {key} of {_TABLE} is {given}: pass a list of ids.")
        try:
            _check_ids(value)
        except ValueError as error:
            raise ValueError(f"{file}: {key} of {_TABLE}: {error}") from None
    return dict(table)


def _check_ids(ids: Iterable[str]) -> frozenset[str]:
    """Return the ids as a set; raise ValueError for an id that no rule has."""
    known = rules()
    return frozenset(known.by_id(id).id for id in ids)


def _split(values: Sequence[str]) -> list[str]:
    """Split option values at commas: ["a,b", "c"] becomes ["a", "b", "c"]."""
    return [id.strip() for value in values for id in value.split(",") if id.strip()]


FORMAT, VERSION = "graphviz_torch baseline", 1

# A number, except in names and shapes.
_NUMBER = re.compile(r"(?<![\w.\[])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w\]])(?!\.\w)")


def fingerprint(finding: Finding) -> str:
    """Return a hash of the finding that ignores line numbers and measured numbers.

    >>> a = Finding("vanishing", "warning", "fc1.weight: 3.2e-9 at net.py:12", where="net.py:12")
    >>> b = Finding("vanishing", "warning", "fc1.weight: 4.1e-9 at net.py:15", where="net.py:15")
    >>> fingerprint(a) == fingerprint(b)
    True
    """
    message = _NUMBER.sub("#", re.sub(r"(\.\w+):\d+", r"\1", finding.message))
    text = "\n".join((finding.rule, finding.where.rpartition(":")[0], message))
    return sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def write_baseline(path: Path, found: Iterable[Finding]) -> None:
    """Write the findings to a baseline file."""
    rows = [
        {"fingerprint": fingerprint(each), "rule": each.rule, "message": each.message}
        for each in found
    ]
    text = json.dumps({"format": FORMAT, "version": VERSION, "findings": rows}, indent=1)
    with replacement(path) as file:
        file.write(f"{text}\n".encode())


def read_baseline(path: Path) -> Counter[str]:
    """Return how often each fingerprint occurs in a baseline file.

    Raises:
        ValueError: if the file is not a baseline that `write_baseline` wrote.
        OSError: if the file cannot be read.
    """
    try:
        limits = Limits(path.stat().st_size)
        limits.check_text(path.stat().st_size)
        text = path.read_bytes()
        limits.check(text)
        data = json_of(text)
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ValueError
        return Counter(str(row["fingerprint"]) for row in data["findings"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f"{path}: this is not a baseline. Write one with --write-baseline {path}."
        ) from None


def new_findings(found: Iterable[Finding], known: Counter[str]) -> list[Finding]:
    """Return the findings that are not in the baseline, in their order.

    If the baseline (`known`) contains a fingerprint n times, the first n findings with this
    fingerprint are left out.
    """
    left, new = Counter(known), []
    for each in found:
        key = fingerprint(each)
        if left[key]:
            left[key] -= 1
        else:
            new.append(each)
    return new
