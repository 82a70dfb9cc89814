"""Merge findings that differ only in the module or parameter that they name into one finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from ..graph import Finding
from ..graph.text import listing

_PATH = r"(?<![\w./:])\w+(?:\.\w+)+(?![\w/:])"  # "layers.0.attn.weight", but also "0.35"
_INDEX = r"(?<![^.])\d+(?![^.])"  # a block's index in a path
_NUMBER = r"(?<![\w.])\d[\d.,]*(?:e[-+]?\d+)?%?(?![\w.]*\w)"


def one_per_block(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in the indices of blocks or, for one line, in paths.

    >>> same = [Finding("r", "info", f"layers.{i}.fc is dead.", nodes=(i,)) for i in range(3)]
    >>> [each.message for each in one_per_block(same)]
    ['layers.0.fc is dead. The same holds for layers.1 and layers.2.']
    >>> same = [Finding("r", "info", f"{name} is dead.", where="a.py:1") for name in ("a.b", "c.b")]
    >>> [each.message for each in one_per_block(same)]
    ['a.b is dead. The same holds for c.']
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        # Findings without a line may have different causes.
        if each.where:
            message, steps = re.sub(_PATH, "*", each.message), None
        else:
            message, steps = re.sub(_PATH, _without_indices, each.message), each.steps
        same = each.rule, each.severity, each.where, each.cause, steps
        groups.setdefault((*same, re.sub(_NUMBER, "#", message)), []).append(each)
    return [finding for group in groups.values() for finding in _merge_group(group)]


def _without_indices(path: re.Match[str]) -> str:
    return re.sub(_INDEX, "*", path[0])


def _merge_group(group: Sequence[Finding]) -> Sequence[Finding]:
    first, *others = group
    parts = [_different_part(first, each) for each in others]
    apart = [each for each, part in zip(others, parts, strict=True) if not part]
    names = list(dict.fromkeys(filter(None, parts)))
    if not names:
        return group
    merged = [each for each in group if each not in apart]
    message = f"{first.message} The same holds for {listing(names)}."
    nodes = dict.fromkeys(node for each in merged for node in each.nodes)
    transfers = dict.fromkeys(place for each in merged for place in each.transfers)
    steps = {step for each in merged for step in each.steps}
    return [
        replace(
            first,
            message=message,
            nodes=tuple(nodes),
            transfers=tuple(transfers),
            steps=tuple(sorted(steps)),
        ),
        *apart,
    ]


def _different_part(first: Finding, other: Finding) -> str:
    """Return the path, up to the first different part, that the other finding names: "layers.1".

    Return "" if the findings differ in more than paths. The end of a shortened name,
    "…0.attn.weight", does not contain the whole path.
    """
    paths = (re.findall(f"(?<!…){_PATH}", each.message) for each in (first, other))
    for mine, theirs in zip(*paths, strict=False):
        parts = theirs.split(".")
        for i, (before, after) in enumerate(zip_longest(mine.split("."), parts)):
            if before != after:
                return ".".join(parts[: i + 1])
    return ""
