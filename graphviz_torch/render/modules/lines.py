"""The lines of a summary: one for each module, or one for several that follow each other, alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import labels
from .sums import ModuleSummary

LINES = 40  # with more modules than this, those that are alike share a line
_NUMBER = re.compile(r"\d+")


class Line(NamedTuple):
    """A name, and the modules that it stands for: one, or some that compute the same."""

    name: str
    indent: int
    rows: tuple[ModuleSummary, ...]


def module_lines(rows: Sequence[ModuleSummary], *, fold: bool) -> list[Line]:
    """The lines for modules that are given in the order of the forward.

    Args:
        fold: let one line stand for modules of equal class, output, parameters, FLOPs, calls and
            children that follow each other under names that differ in a number.
    """
    root = [row for row in rows if not row.module]
    indent = len(root)
    lines = [Line(row.module_class, 0, (row,)) for row in root]
    if not fold:
        rest = [row for row in rows if row.module]
        return lines + [Line(_name(row), row.depth - 1 + indent, (row,)) for row in rest]
    tree = _Tree(rows)
    return lines + list(tree.lines([tree.children.get("", [])], indent))


class _Tree:
    def __init__(self, rows: Sequence[ModuleSummary]) -> None:
        self.rows = {row.module: row for row in rows if row.module}
        self.children: dict[str, list[str]] = {}
        for path in self.rows:
            self.children.setdefault(path.rpartition(".")[0], []).append(path)
        self.kinds: dict[object, int] = {}
        self.known: dict[str, int] = {}  # of each path its kind

    def lines(self, levels: list[list[str]], indent: int) -> Iterator[Line]:
        """The lines of a level, which several parents have that are alike."""
        for begin, end in self._families(levels[0]):
            paths = [path for level in levels for path in level[begin:end]]
            rows = tuple(self.rows[path] for path in paths)
            name = _name(rows[0])
            if end - begin > 1:
                last = levels[0][end - 1].rpartition(".")[2]
                names = f"{_last(rows[0])} … {last} {labels.TIMES} {end - begin}"
                name = labels.with_class(names, rows[0].module_class)
            yield Line(name, indent, rows)
            yield from self.lines([self.children.get(path, []) for path in paths], indent + 1)

    def _families(self, level: list[str]) -> Iterator[tuple[int, int]]:
        """From where to where modules are alike."""
        begin = 0
        for end in range(1, len(level) + 1):
            if end == len(level) or self._like(level[end]) != self._like(level[begin]):
                yield begin, end
                begin = end

    def _like(self, path: str) -> int:
        if path not in self.known:
            row = self.rows[path]
            inner = tuple([self._like(child) for child in self.children.get(path, [])])
            stem = _NUMBER.sub("", _last(row))
            facts = (row.output, row.parameters, row.trainable, row.flops_forward, row.calls)
            noted = tuple([value for value in row.row[1:] if isinstance(value, str)])
            key = (stem, row.module_class, facts, noted, row.flops_backward, inner)
            self.known[path] = self.kinds.setdefault(key, len(self.kinds))
        return self.known[path]


def _last(row: ModuleSummary) -> str:
    return row.module.rpartition(".")[2]


def _name(row: ModuleSummary) -> str:
    name = labels.with_class(_last(row), row.module_class)
    return name + (f" {labels.TIMES}{row.calls}" if row.calls and row.calls > 1 else "")
