"""Make a table of modules with FLOPs, parameters, saved bytes and gradients: `summary`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from textwrap import wrap
from typing import Any

from ..graph import GraphLike, ModuleRow, graph_of
from ..graph.immutable import NamedTuple, immutable
from ..graph.nodes import Column, columns_in
from ..graph.terminal import TableColumn, hidden_columns_text, line_width, table, width_of
from ..graph.text import printable
from ..graph.units import bytes_text, number_text, seconds_text
from . import labels
from .labels import count
from .module_sums import ModuleSummary, in_order, sums_by_module

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


_MAX_MODULES = 400  # the table shows fewer levels of modules if it would have more rows
_MIN_NAME_WIDTH = 24  # minimum width of the column of names, in characters


@immutable(slots=False)
class Summary:
    """The result of `summary`, which `print` and notebooks show as a table.

    >>> import torch
    >>> from graphviz_torch import record, summary
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model, gradients=False, memory=False) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> print(summary(recording))
    module        output  params  FLOPs  backward
    ---------------------------------------------
    Linear(2, 1)     4x1       3     16        16
    ---------------------------------------------
    total         scalar       3     16        16
    """

    # The modules in the order of forward, each before its submodules. If the model computes
    # something outside of its submodules, the model itself is the first, with the path "".
    modules: tuple[ModuleSummary, ...]
    total: ModuleSummary
    depth: int  # deepest level in `modules`
    deepest: int  # deepest level in the graph

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each module, and a last dict for the total.

        `pandas.DataFrame(summary.rows())` creates a data frame. The value of "output" is text, such
        as "f32[8, 128] cpu"; other values are numbers, text or None. The last fields are those of
        `recorded_columns`, which plugins recorded for modules.
        """
        rows = [asdict(row) for row in (*self.modules, self.total)]
        for row, each in zip(rows, (*self.modules, self.total), strict=True):
            row["output"] = None if each.output is None else str(each.output)
            del row["row"]
            row |= {name: getattr(each.row, name) for name in self.recorded_columns}
        return rows

    @property
    def recorded_columns(self) -> Mapping[str, Column]:
        """The recorded fields of `ModuleRow`, except text that is equal in all modules."""
        return columns_in(ModuleRow, [row.row for row in self.modules] or [self.total.row])

    def to_text(self, *, wide: bool = False) -> str:
        """Return the table as text. Lines fit the terminal, or 80 characters without a terminal.

        Args:
            wide: True to show everything. Otherwise columns that do not fit are left out, and if
                there are many modules, identical blocks share a row.
        """
        width = line_width(wide)
        lines, cells = self._cells(fold=not wide)
        columns = [TableColumn("module", [_indented_name(line) for line in lines], _MIN_NAME_WIDTH)]
        columns += [TableColumn(name, column, right=True) for name, column in cells.items()]
        rows, missing = table(
            columns,
            width,
            (*_COLUMNS_BY_IMPORTANCE, *(column.title for column in self.recorded_columns.values())),
        )
        rule = "-" * max(map(width_of, rows))
        notes = list(self._notes())
        if missing:
            notes.append(hidden_columns_text(missing, width))
        if width is not None:
            notes = [line for note in notes for line in wrap(note, width, subsequent_indent="  ")]
        modules = [*rows[1:-1], rule] if lines[1:] else []
        return "\n".join([rows[0], rule, *modules, rows[-1], *notes])

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines, columns = self._cells(fold=True)
        right = ' style="text-align:right;white-space:nowrap"'
        head = "".join(f"<th{right}>{escape(name)}</th>" for name in columns)
        rows = []
        for line, row in zip(lines, zip(*columns.values(), strict=True), strict=True):
            indent = f"text-align:left;padding-left:{0.5 + line.indent}em"
            tag = "th" if line.name == "total" else "td"
            cells = map(escape, map(printable, row))
            title = f'<{tag} style="{indent}">{escape(printable(line.name))}</{tag}>'
            rows.append(title + "".join(f"<{tag}{right}>{cell}</{tag}>" for cell in cells))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "<br>".join(map(escape, map(printable, self._notes())))
        return (
            f'<table><thead><tr><th style="text-align:left">module</th>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table><small>{notes}</small>"
        )

    def _cells(self, *, fold: bool) -> tuple[list[SummaryRow], dict[str, list[str]]]:
        """Return the rows, with the total last, and column title -> cells of the rows.

        Empty columns are left out.

        Args:
            fold: True to put identical modules into one row if there are many modules.
        """
        rows = (*self.modules, self.total)
        fold = fold and len(self.modules) > MAX_UNFOLDED
        lines = [*summary_rows(self.modules, fold=fold), SummaryRow("total", 0, (self.total,))]
        columns = _COLUMNS | {
            column.title: _Cells(_text(name, column), _number(name))
            for name, column in self.recorded_columns.items()
        }
        if all(row.trainable == row.parameters for row in rows):
            del columns["trainable"]
        return lines, {
            title: [cells.cell(line.rows) for line in lines]
            for title, cells in columns.items()
            if any(map(cells.text, rows))
        }

    def _notes(self) -> Iterator[str]:
        if self.depth < self.deepest:
            yield f"depth {self.depth} of {self.deepest}: summary(graph, depth={self.depth + 1})"
        if self.total.flops_unknown:
            nodes = f"{self.total.flops_unknown:,} node{'s' * (self.total.flops_unknown != 1)}"
            yield f"\N{GREATER-THAN OR EQUAL TO}: the FLOPs of {nodes} are not known"
        if number := self.total.partial:
            tensors = f"{number:,} parameter{'s' * (number != 1)}"
            yield f"gradient: the norm for {tensors} is of this process's shard only"


def summary(graph: GraphLike, *, depth: int | None = None) -> Summary:
    """Return a table of the modules: FLOPs, parameters, bytes kept for backward, gradients.

    The columns are the module with its class and number of calls, the shape of the output, the
    number of (trainable) parameters, the FLOPs of forward and backward by PyTorch's formulas, the
    bytes saved for backward, the gradient norm and its ratio to the norm of the weights, the time
    in backward, and the bytes sent to other ranks. Empty columns are left out.

    FLOPs are computed from operations and shapes, so a graph from a file has them, too, even
    without torch.

    Args:
        graph: a Graph, a recording, or any argument of `trace`, such as a tensor.
        depth: number of levels of modules to show; 1 shows the children of the model. None shows as
            many levels as fit 40 rows, with one row for several identical blocks.

    Raises:
        TypeError: if `graph` is none of these.
        ValueError: if `graph` has no autograd graph, or if `depth` is less than 1.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    >>> with record(gradients=False, memory=False) as recording:
    ...     model(torch.ones(8, 4)).sum().backward()
    >>> print(summary(recording))
    module             output  params   FLOPs  backward
    ---------------------------------------------------
    0 · Linear(4, 16)    8x16      80  1.02 k    1.02 k
    1 · ReLU             8x16       0       0         0
    2 · Linear(16, 1)     8x1      17     256       512
    ---------------------------------------------------
    total              scalar      97  1.28 k    1.54 k
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth={depth}: pass 1 or more, or None for as many levels as fit.")
    graph = graph_of(graph)
    found, root = sums_by_module(graph)
    scale = graph.step.loss_scale or 1.0
    rows = [found[path].row(path, scale) for path in in_order(found) if path]
    if root.kind:
        rows.insert(0, root.row("", scale))
    deepest = max((row.depth for row in rows), default=0)
    wanted = min(_depth(rows, deepest) if depth is None else depth, deepest)
    shown = tuple(row for row in rows if row.depth <= wanted)
    return Summary(shown, found[""].row("", scale), wanted, deepest)


def _depth(rows: list[ModuleSummary], deepest: int) -> int:
    """Return the deepest level at which the table has few enough rows.

    Args:
        rows: all modules.
        deepest: the deepest level in the graph.
    """
    for depth in range(deepest, 1, -1):
        level = tuple(row for row in rows if row.depth <= depth)
        if len(level) <= MAX_UNFOLDED:
            return depth
        if len(level) <= _MAX_MODULES and len(summary_rows(level, fold=True)) <= MAX_UNFOLDED:
            return depth
    return 1


def _indented_name(line: SummaryRow) -> str:
    name = printable(line.name)
    return "  " * line.indent + name


def _flops(number: int, row: ModuleSummary) -> str:
    if not number and not row.flops_unknown and row.output is None:
        return ""  # the module has no operation in the graph, but it may have run without gradients
    return ("\N{GREATER-THAN OR EQUAL TO}" if row.flops_unknown else "") + count(number)


def _text_or_empty(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


class _Cells(NamedTuple):
    """A column of the table, as functions that write its cells."""

    text: Callable[[ModuleSummary], str]
    # Function that returns the number by which the modules of a row are sorted, to write a range.
    measure: Callable[[ModuleSummary], float | None] = lambda row: None

    def cell(self, rows: tuple[ModuleSummary, ...]) -> str:
        """Return the cell of modules that share a row: their common text, or a range of texts."""
        ends = [(x, i) for i, row in enumerate(rows) if (x := self.measure(row)) is not None]
        if not ends or len({self.text(row) for row in rows}) == 1:
            return self.text(rows[0])
        least, most = (self.text(rows[i]) for _, i in (min(ends), max(ends)))
        return f"{least} … {most}"


def _text(name: str, column: Column) -> Callable[[ModuleSummary], str]:
    return lambda row: column.text(getattr(row.row, name))


def _number(name: str) -> Callable[[ModuleSummary], float | None]:
    def measure(row: ModuleSummary) -> float | None:
        value = getattr(row.row, name)
        return value if isinstance(value, (int, float)) else None

    return measure


_COLUMNS: dict[str, _Cells] = {
    "output": _Cells(
        lambda row: "" if row.output is None else "x".join(map(str, row.output.shape)) or "scalar"
    ),
    "params": _Cells(lambda row: count(row.parameters)),
    "trainable": _Cells(lambda row: count(row.trainable)),
    "FLOPs": _Cells(lambda row: _flops(row.flops_forward, row)),
    "backward": _Cells(lambda row: _flops(row.flops_backward, row)),
    "saved": _Cells(
        lambda row: _text_or_empty(row.saved_bytes, bytes_text), lambda row: row.saved_bytes
    ),
    "gradient": _Cells(
        lambda row: _text_or_empty(row.gradient_norm, lambda x: number_text(x, 3)),
        lambda row: row.gradient_norm,
    ),
    "/weights": _Cells(
        lambda row: _text_or_empty(row.gradient_ratio, lambda x: number_text(x, 3)),
        lambda row: row.gradient_ratio,
    ),
    "time": _Cells(lambda row: _text_or_empty(row.seconds, seconds_text), lambda row: row.seconds),
    "sent": _Cells(
        lambda row: _text_or_empty(row.sent_bytes, bytes_text), lambda row: row.sent_bytes
    ),
}
# If the table is too wide, columns are left out from the end of this list.
_COLUMNS_BY_IMPORTANCE = (
    "module",
    "params",
    "gradient",
    "output",
    "FLOPs",
    "sent",
    "saved",
    "time",
    "trainable",
)
