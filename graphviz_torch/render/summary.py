"""summary(): one line a module, with what it computes, holds, keeps and learns, and the total."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from ..graph import Graph, GraphLike, Node, Parameter, TensorMeta, graph_of
from ..graph.flops import flops
from ..graph.units import bytes_text, number_text, seconds_text
from .labels import TIMES, count

_ROWS = 40  # that are shown where no depth is asked for
_WIDTH = 100  # characters of a line
_NARROWEST = 20  # of the column of modules


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """One module with all that lies below it. None: it was not recorded."""

    module: str  # "" for the total
    module_class: str
    calls: int | None  # of its forward
    output: TensorMeta | None  # of its last call
    parameters: int  # elements, of each tensor once
    trainable: int  # elements of those that require a gradient
    flops_forward: int  # see `graph/flops.py` for what is counted
    flops_backward: int
    flops_unknown: int  # nodes whose FLOPs cannot be told, and are not in the two above
    saved_bytes: int | None  # kept for backward
    gradient_norm: float | None  # of all its parameters' gradients together, without a loss scale
    gradient_ratio: float | None  # that, divided by the norm of the parameters
    seconds: float | None  # in backward

    @property
    def depth(self) -> int:
        """How many names its path has; 0 for the total."""
        return self.module.count(".") + 1 if self.module else 0


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
    found = _collect(graph)
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
        for path in _in_order(found)
        if path.count(".") < wanted and path
    ]
    return Summary(tuple(rows), found[""].row("", scale), min(wanted, deepest), deepest)


@dataclass(slots=True)
class _Sums:
    """What is added up for a module and all below it."""

    first: float = math.inf  # when the forward came here
    last: Node | None = None  # whose output leaves the module last
    kind: str = ""
    scopes: set[str] = field(default_factory=set)
    parameters: int = 0
    trainable: int = 0
    forward: int = 0
    backward: int = 0
    unknown: int = 0
    saved: int | None = None
    seconds: float | None = None
    gradient: float | None = None  # the squares of norms
    weights: float | None = None

    def row(self, path: str, scale: float) -> ModuleSummary:
        norm = None if self.gradient is None else math.sqrt(self.gradient) / scale
        weights = None if self.weights is None else math.sqrt(self.weights)
        output = None if self.last is None else next(filter(None, self.last.outputs), None)
        ratio = norm / weights if norm is not None and weights else None
        return ModuleSummary(
            module=path,
            module_class=self.kind,
            calls=len(self.scopes) or None,
            output=output,
            parameters=self.parameters,
            trainable=self.trainable,
            flops_forward=self.forward,
            flops_backward=self.backward,
            flops_unknown=self.unknown,
            saved_bytes=self.saved,
            gradient_norm=norm,
            gradient_ratio=ratio,
            seconds=self.seconds,
        )


def _collect(graph: Graph) -> dict[str, _Sums]:
    """The sums of every module's path, and of all at ""."""
    found: dict[str, _Sums] = {"": _Sums()}
    leaving = _leaving(graph)
    backwards = any(node.order is not None for node in graph.nodes)
    for node, operations in zip(graph.nodes, flops(graph), strict=True):
        # Backward runs the forward's order in reverse; of a graph that did not run, its own.
        moment = node.id if node.order is None else -node.order if backwards else node.id
        kinds, scopes = node.module_class.split("/"), node.scope.split(".")
        for depth, path in enumerate(_along(node.module)):
            sums = found.setdefault(path, _Sums())
            if depth and len(kinds) >= depth:
                sums.kind = sums.kind or kinds[depth - 1]
            if node.leaf:
                continue
            sums.first = min(sums.first, moment)
            if depth and node.scope:
                sums.scopes.add(".".join(scopes[:depth]))
            if leaving[node.id] <= depth:
                sums.last = node
            sums.forward += operations.forward or 0
            sums.backward += operations.backward or 0
            sums.unknown += None in operations
            if node.saved:
                sums.saved = (sums.saved or 0) + node.saved_bytes
            if node.seconds is not None:
                sums.seconds = (sums.seconds or 0.0) + node.seconds
    for parameter, path in _parameters(graph):
        elements = math.prod(max(size, 0) for size in parameter.tensor.shape)
        node_id = parameter.node
        stats = None if node_id is None else next(iter(graph.nodes[node_id].grad_outputs), None)
        for each in _along(path):
            sums = found.setdefault(each, _Sums())
            sums.parameters += elements
            sums.trainable += elements if parameter.requires_grad else 0
            if stats is not None:
                sums.gradient = (sums.gradient or 0.0) + stats.norm**2
                if parameter.norm is not None:
                    sums.weights = (sums.weights or 0.0) + parameter.norm**2
    found[""].last = next((graph.nodes[node] for node, _ in graph.outputs), None)
    return found


def _parameters(graph: Graph) -> Iterator[tuple[Parameter, str]]:
    """The parameters with the paths of their modules: those recorded, else those in the graph."""
    if graph.parameters:
        for parameter in graph.parameters:
            yield parameter, parameter.name.rpartition(".")[0]
        return
    for node in graph.nodes:
        if node.leaf == "parameter" and node.outputs and node.outputs[0] is not None:
            yield Parameter(node.label, node.outputs[0], True, node.id), node.module


def _leaving(graph: Graph) -> list[int]:
    """For each node, how deep the innermost module is that holds all that uses its output, plus 1.

    A module at that depth or deeper gives the output away; 0 for an output of the graph.
    """
    paths = [node.module.split(".") if node.module else [] for node in graph.nodes]
    deepest = [len(path) + 1 for path in paths]
    for source, target in [(edge.source, edge.target) for edge in graph.edges]:
        shared = 0
        for a, b in zip(paths[source], paths[target], strict=False):
            if a != b:
                break
            shared += 1
        deepest[source] = min(deepest[source], shared + 1)
    for node, _ in graph.outputs:
        deepest[node] = 0
    return deepest


def _along(path: str) -> Iterator[str]:
    """ "", "encoder", "encoder.0": the path and all above it, outermost first."""
    yield ""
    parts = path.split(".") if path else []
    for depth in range(1, len(parts) + 1):
        yield ".".join(parts[:depth])


def _in_order(found: dict[str, _Sums]) -> Iterable[str]:
    """The paths as the forward came to them, each before those below it."""
    first = {path: (sums.first, i) for i, (path, sums) in enumerate(found.items())}
    return sorted(found, key=lambda path: [first[each] for each in _along(path)])


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
