"""Choose the rows of a summary: one for each module, or for consecutive identical modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import labels
from .sums import ModuleSummary

MAX_UNFOLDED = 40  # if there are more modules, identical modules share a row
_NUMBER = re.compile(r"\d+")


class SummaryRow(NamedTuple):
    """A row of the summary: a name, and one module or several identical modules."""

    name: str
    indent: int
    rows: tuple[ModuleSummary, ...]


def summary_rows(rows: Sequence[ModuleSummary], *, fold: bool) -> list[SummaryRow]:
    """Return the rows of the table for some modules.

    Args:
        rows: the modules, in the order of forward.
        fold: True to put consecutive modules into one row if they have equal class, output,
            parameters, FLOPs, calls and children, and if their names differ only in a number.
    """
    root = [row for row in rows if not row.module]
    indent = len(root)
    lines = [SummaryRow(row.module_class, 0, (row,)) for row in root]
    if not fold:
        rest = [row for row in rows if row.module]
        return lines + [SummaryRow(_name(row), row.depth - 1 + indent, (row,)) for row in rest]
    tree = _Tree(rows)
    return lines + list(tree.lines([tree.children.get("", [])], indent))


class _Tree:
    def __init__(self, rows: Sequence[ModuleSummary]) -> None:
        self.rows = {row.module: row for row in rows if row.module}
        self.children: dict[str, list[str]] = {}
        for path in self.rows:
            self.children.setdefault(path.rpartition(".")[0], []).append(path)
        self.kinds: dict[object, int] = {}
        self.known: dict[str, int] = {}  # path -> id of the module's structure

    def lines(self, levels: list[list[str]], indent: int) -> Iterator[SummaryRow]:
        """Yield the rows of a module's children, each followed by the rows of its own children.

        Args:
            levels: for each of several identical parents, the paths of its children. Corresponding
                children share a row.
            indent: depth of the children.
        """
        for begin, end in self._families(levels[0]):
            paths = [path for level in levels for path in level[begin:end]]
            rows = tuple(self.rows[path] for path in paths)
            name = _name(rows[0])
            if end - begin > 1:
                last = levels[0][end - 1].rpartition(".")[2]
                names = f"{_last_name(rows[0])} … {last} {labels.TIMES} {end - begin}"
                name = labels.with_class(names, rows[0].module_class)
            yield SummaryRow(name, indent, rows)
            yield from self.lines([self.children.get(path, []) for path in paths], indent + 1)

    def _families(self, level: list[str]) -> Iterator[tuple[int, int]]:
        """Yield the ranges (begin, end) of consecutive identical modules in a level."""
        begin = 0
        for end in range(1, len(level) + 1):
            if end == len(level) or self._structure_id(level[end]) != self._structure_id(
                level[begin]
            ):
                yield begin, end
                begin = end

    def _structure_id(self, path: str) -> int:
        if path not in self.known:
            row = self.rows[path]
            inner = tuple([self._structure_id(child) for child in self.children.get(path, [])])
            stem = _NUMBER.sub("", _last_name(row))
            facts = (row.output, row.parameters, row.trainable, row.flops_forward, row.calls)
            noted = tuple([value for value in row.row[1:] if isinstance(value, str)])
            key = (stem, row.module_class, facts, noted, row.flops_backward, inner)
            self.known[path] = self.kinds.setdefault(key, len(self.kinds))
        return self.known[path]


def _last_name(row: ModuleSummary) -> str:
    return row.module.rpartition(".")[2]


def _name(row: ModuleSummary) -> str:
    name = labels.with_class(_last_name(row), row.module_class)
    return name + (f" {labels.TIMES}{row.calls}" if row.calls and row.calls > 1 else "")
