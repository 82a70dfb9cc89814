"""The graph as text: a table in topological order, for terminals, logs and golden files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from textwrap import wrap

from ..graph import Edge, Finding, FindingsLike, Graph, GraphLike, Node, findings_of, graph_of
from ..graph.column import Column, declared
from ..graph.units import seconds_text
from . import labels
from .drawing.mark import WARNINGS

# The declared fields that come first; the others follow in their own order.
_FIRST = ("seconds", "saved", "scope", "module_class", "source", "attributes", "note")
_WIDTH = 80  # characters of a line of a message
_WIDEST = 64  # characters of one cell; a longer name is cut


def to_text(graph: GraphLike, *, findings: FindingsLike = "auto") -> str:
    """The graph as a table with one line a node, inputs before users.

    Columns that nobody recorded are left out; names are escaped as Python would escape them.

    Args:
        graph: a graph, a recording, of which the last backward is written, or a tensor.
        findings: what to mark, with the messages below the table: "auto" for what `find` says of
            the graph, a list of findings, or None.

    >>> from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
    >>> scalar = (TensorMeta((), "float32", "cpu"),)
    >>> x = Node(0, "AccumulateGrad", scalar, "x", leaf="tensor")
    >>> y = Node(1, "ExpBackward0", scalar, "y", "exp")
    >>> print(to_text(Graph((x, y), (Edge(0, 1),), ((1, 0),))))
    2 nodes, 1 edge, 1 output
    <BLANKLINE>
    id  label  operation       output     inputs
     0  x      AccumulateGrad  f32[] cpu
     1  y      exp             f32[] cpu  0
    <BLANKLINE>
    outputs: 1 (y)
    <BLANKLINE>
    """
    graph = graph_of(graph)
    marked = findings_of(graph, findings)
    parts = [_summary(graph)]
    if graph.nodes:
        parts.append(_nodes(graph, marked))
    if graph.outputs:
        ends = (f"{node}{_called(graph.nodes[node])}" for node, _ in graph.outputs)
        parts.append(f"outputs: {', '.join(ends)}")
    if graph.transfers:
        parts.append(_transfers(graph))
    if graph.cuts:
        parts.append(_cuts(graph))
    if marked:
        parts.append("\n".join(line for finding in marked for line in _message(finding)))
    return "\n\n".join(parts) + "\n"


def _summary(graph: Graph) -> str:
    figures = [
        (len(graph.nodes), "node"),
        (len(graph.edges), "edge"),
        (len(graph.outputs), "output"),
        (len(graph.transfers), "transfer"),
    ]
    return ", ".join(
        f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in figures if n or name != "transfer"
    )


def _nodes(graph: Graph, findings: tuple[Finding, ...]) -> str:
    inputs = graph.inputs()
    marks: dict[int, dict[str, None]] = {}
    for finding in findings:
        for node in finding.nodes:
            marks.setdefault(node, {})[f"{WARNINGS[finding.severity]} {finding.rule}"] = None
    columns: dict[str, Callable[[Node], str]] = {
        "id": lambda node: str(node.id),
        "label": lambda node: _plain(node.label),
        "operation": lambda node: _plain(node.title + labels.telling(node.title, node.attributes)),
        "finding": lambda node: ", ".join(marks.get(node.id, ())),
        "output": lambda node: labels.tensors(node.outputs),
        "inputs": lambda node: ", ".join(_end(graph, edge) for edge in inputs[node.id]),
        "gradient": lambda node: "; ".join(labels.gradient(g)[5:] for g in node.grad_outputs if g),
    }
    fields = declared(Node)
    for name in dict.fromkeys((*_FIRST, *fields)):
        columns[fields[name].title] = partial(_cell, name, fields[name])
    rows = [[cell(node) for cell in columns.values()] for node in graph.nodes]
    return _table(list(columns), rows, right=("id",))


def _cell(name: str, column: Column, node: Node) -> str:
    return _plain(column.text(getattr(node, name)))


def _end(graph: Graph, edge: Edge) -> str:
    several = len(graph.nodes[edge.source].outputs) > 1
    return f"{edge.source}[{edge.output_nr}]" if several else str(edge.source)


def _transfers(graph: Graph) -> str:
    names = ["transfer", "from", "to", "tensor", "bytes", "phase", "node", "label", "where", "time"]
    rows = [
        [
            transfer.kind,
            transfer.source,
            transfer.target,
            labels.shape(transfer.tensor),
            "" if transfer.nbytes is None else f"{transfer.nbytes:,}",
            transfer.phase,
            "" if transfer.node is None else str(transfer.node),
            _plain(transfer.label),
            _plain(transfer.where),
            "" if transfer.seconds is None else seconds_text(transfer.seconds),
        ]
        for transfer in graph.transfers
    ]
    return _table(names, rows, right=("bytes", "node"))


def _cuts(graph: Graph) -> str:
    names = ["cut", "of", "tensor", "made by", "used by", "where"]
    rows = [
        [
            cut.how,
            _plain(cut.label),
            "" if cut.tensor is None else labels.shape(cut.tensor),
            "not in this graph" if cut.before is None else str(cut.before),
            ", ".join(map(str, cut.after)),
            _plain(cut.where),
        ]
        for cut in graph.cuts
    ]
    return _table(names, rows, right=())


def _message(finding: Finding) -> Iterator[str]:
    where = f" at {_plain(finding.where)}" if finding.where else ""
    yield f"{WARNINGS[finding.severity]} {finding.severity}: {finding.rule}{where}"
    for line in wrap(_escaped(finding.message), _WIDTH - 2):
        yield f"  {line}"
    for line in wrap(_escaped(finding.advice), _WIDTH - 5):
        yield f"  {line}"


def _table(names: list[str], rows: list[list[str]], right: tuple[str, ...]) -> str:
    """Rows under their names, without the columns in which no row has anything."""
    used = [i for i in range(len(names)) if any(row[i] for row in rows) or names[i] == "label"]
    wide = {i: max(len(names[i]), *(len(row[i]) for row in rows)) for i in used}
    return "\n".join(
        "  ".join(
            row[i].rjust(wide[i]) if names[i] in right else row[i].ljust(wide[i]) for i in used
        ).rstrip()
        for row in [names, *rows]
    )


def _called(node: Node) -> str:
    return f" ({_plain(node.label)})" if node.label else ""


def _escaped(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _plain(text: str) -> str:
    """A name on one line, cut where it is too long."""
    shown = _escaped(text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}…"
