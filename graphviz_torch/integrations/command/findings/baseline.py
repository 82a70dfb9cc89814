"""Baselines: files with known findings, which a command leaves out of its report.

Two findings are the same if their rules, file names and messages are equal, apart from line numbers
and measured numbers. Numbers in names are compared: "layers.1" differs from "layers.2".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from .... import Finding
from ....graph.files.file import json_of
from ....graph.files.limits import Limits
from ....graph.files.replacement import replacement

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
