"""summary(): one line a module, with what it computes, holds, keeps and learns, and the total."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ..graph import GraphLike, graph_of
from ..graph.units import bytes_text, number_text, seconds_text
from .labels import TIMES, count
from .module_sums import ModuleSummary, in_order, sums_by_module

_ROWS = 40  # that are shown where no depth is asked for
_WIDTH = 100  # characters of a line
_NARROWEST = 20  # of the column of modules


@dataclass(frozen=True, repr=False)
class Summary:
    """What `summary` returns: prints as a table, and shows as one in a notebook.

    >>> import torch
    >>> from graphviz_torch import record, summary
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> print(summary(recording))  # doctest: +ELLIPSIS
    module  output  params  FLOPs  backward ...
    total   scalar       3     16        16 ...
    """

    modules: tuple[ModuleSummary, ...]  # in the order of the forward, each before what it holds
    total: ModuleSummary
    depth: int  # how deep `modules` goes
    deepest: int  # how deep the graph goes

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each module, and the total last: `pandas.DataFrame(summary.rows())`.

        "output" is text, "f32[8, 128] cpu"; the other values are numbers, text or None.
        """
        rows = [asdict(row) for row in (*self.modules, self.total)]
        for row, each in zip(rows, (*self.modules, self.total), strict=True):
            row["output"] = None if each.output is None else str(each.output)
        return rows

    def to_text(self, width: int = _WIDTH) -> str:
        """The table; a name that does not fit into `width` characters is cut."""
        names, cells = self._cells()
        indented = [f"{'  ' * max(r.depth - 1, 0)}{_plain(_name(r))}" for r in self.modules]
        first = ["module", *indented, "total"]
        columns = [
            [name, *column] for name, column in zip(names, zip(*cells, strict=True), strict=True)
        ]
        wide = [max(map(len, column)) for column in columns]
        left = max(width - sum(wide) - 2 * len(wide), _NARROWEST)
        left = min(left, max(map(len, first)))
        lines = [
            "  ".join(
                [
                    _cut(name, left).ljust(left),
                    *(t.rjust(w) for t, w in zip(row, wide, strict=True)),
                ]
            )
            for name, *row in zip(first, *columns, strict=True)
        ]
        lines.insert(1, "-" * len(lines[0]))
        lines.insert(-1, lines[1])
        return "\n".join([*lines, *self._notes()])

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names, cells = self._cells()
        right = ' style="text-align:right;white-space:nowrap"'
        head = "".join(f"<th{right}>{escape(name)}</th>" for name in names)
        rows = []
        for row, texts in zip((*self.modules, self.total), cells, strict=True):
            indent = f"text-align:left;padding-left:{0.5 + max(row.depth - 1, 0)}em"
            tag = "td" if row.module else "th"
            name = f'<{tag} style="{indent}">{escape(_name(row))}</{tag}>'
            rows.append(name + "".join(f"<{tag}{right}>{escape(t)}</{tag}>" for t in texts))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "<br>".join(map(escape, self._notes()))
        return (
            f'<table><thead><tr><th style="text-align:left">module</th>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table><small>{notes}</small>"
        )

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Names of the columns in which something stands, and a row of texts for each module."""
        rows = (*self.modules, self.total)
        used = [
            name
            for name, text in _COLUMNS.items()
            if any(text(row) for row in rows)
            and not (name == "trainable" and all(r.trainable == r.parameters for r in rows))
        ]
        return used, [[_COLUMNS[name](row) for name in used] for row in rows]

    def _notes(self) -> Iterator[str]:
        if self.depth < self.deepest:
            yield f"depth {self.depth} of {self.deepest}: summary(graph, depth={self.depth + 1})"
        if self.total.flops_unknown:
            nodes = f"{self.total.flops_unknown:,} node{'s' * (self.total.flops_unknown != 1)}"
            yield f"\N{GREATER-THAN OR EQUAL TO}: the FLOPs of {nodes} are not known"
        if number := self.total.partial:
            tensors = f"{number:,} parameter{'s' * (number != 1)}"
            yield f"gradient: of {tensors} the norm of the part that this process has"


def summary(graph: GraphLike, *, depth: int | None = None) -> Summary:
    """A table by module: what each computes, holds, keeps for backward and learns.

    Args:
        graph: a Graph, a recording, or what `trace` takes.
        depth: how many names of a module's path are told apart: 1 is the model's children. None:
            as many as fit 40 lines.

    The columns: the module with its class and how often it was called; the shape of its output;
    how many elements its parameters have, and those that learn where some do not; FLOPs of forward
    and of backward, by PyTorch's own formulas; bytes kept for backward; the norm of its gradients,
    and that divided by the norm of its weights; the time in backward. A column of which nothing
    was recorded is left out. FLOPs are read from operations and shapes: a graph from a file tells
    them too, without torch.

    Raises:
        TypeError, ValueError: as `graph_of`; ValueError for a depth below 1.

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
        raise ValueError(f"depth={depth}: pass 1 or more, or None for as deep as fits.")
    graph = graph_of(graph)
    found = sums_by_module(graph)
    deepest = max((path.count(".") + 1 for path in found if path), default=0)
    wanted = depth
    if wanted is None:
        fits = (
            d
            for d in range(deepest, 1, -1)
            if sum(path.count(".") < d for path in found) <= _ROWS + 1
        )
        wanted = next(fits, 1)
    scale = graph.step.loss_scale or 1.0
    rows = [
        found[path].row(path, scale)
        for path in in_order(found)
        if path.count(".") < wanted and path
    ]
    return Summary(tuple(rows), found[""].row("", scale), min(wanted, deepest), deepest)


def _name(row: ModuleSummary) -> str:
    if not row.module:
        return "total"
    name = row.module.rpartition(".")[2]
    name += f" · {row.module_class}" if row.module_class else ""
    return name + (f" {TIMES}{row.calls}" if row.calls and row.calls > 1 else "")


def _flops(number: int, row: ModuleSummary) -> str:
    return ("\N{GREATER-THAN OR EQUAL TO}" if row.flops_unknown else "") + count(number)


def _if(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


_COLUMNS: dict[str, Callable[[ModuleSummary], str]] = {
    "output": lambda row: (
        "" if row.output is None else "x".join(map(str, row.output.shape)) or "scalar"
    ),
    "params": lambda row: count(row.parameters),
    "trainable": lambda row: count(row.trainable),
    "FLOPs": lambda row: _flops(row.flops_forward, row),
    "backward": lambda row: _flops(row.flops_backward, row),
    "saved": lambda row: _if(row.saved_bytes, bytes_text),
    "gradient": lambda row: _if(row.gradient_norm, lambda x: number_text(x, 3)),
    "/weights": lambda row: _if(row.gradient_ratio, lambda x: number_text(x, 3)),
    "time": lambda row: _if(row.seconds, seconds_text),
}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
