"""Merge findings that are repeated for each of a model's blocks into one finding."""

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
    """Merge findings for one line that differ only in the indices of blocks.

    >>> same = [Finding("r", "info", f"layers.{i}.fc is dead.", nodes=(i,)) for i in range(3)]
    >>> [each.message for each in one_per_block(same)]
    ['layers.0.fc is dead. The same holds for layers.1 and layers.2.']
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        message = re.sub(_PATH, lambda match: re.sub(_INDEX, "*", match[0]), each.message)
        same = each.rule, each.severity, each.where, each.cause, each.steps
        groups.setdefault((*same, re.sub(_NUMBER, "#", message)), []).append(each)
    return [finding for group in groups.values() for finding in _merge_group(group)]


def _merge_group(group: Sequence[Finding]) -> Sequence[Finding]:
    first, *others = group
    blocks = {block: None for each in others if (block := _block(first, each))}
    if not others or len(blocks) < len(others):
        return group
    message = f"{first.message} The same holds for {listing(blocks)}."
    nodes = dict.fromkeys(node for each in group for node in each.nodes)
    transfers = dict.fromkeys(place for each in group for place in each.transfers)
    return [replace(first, message=message, nodes=tuple(nodes), transfers=tuple(transfers))]


def _block(first: Finding, other: Finding) -> str:
    """Return the path of the other finding's block, such as "layers.1".

    Return "" if the findings differ in more than the block. The end of a shortened name,
    "…0.attn.weight", does not contain the path of the block.
    """
    paths = (re.findall(f"(?<!…){_PATH}", each.message) for each in (first, other))
    for mine, theirs in zip(*paths, strict=False):
        parts = theirs.split(".")
        for i, (before, after) in enumerate(zip_longest(mine.split("."), parts)):
            if before != after:
                return ".".join(parts[: i + 1]) if (after or "").isdecimal() else ""
    return ""
