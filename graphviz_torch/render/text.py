"""Write a graph as an outline that fits a terminal, or as a table of all columns: `to_text`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap

from ..graph import Edge, Finding, Graph, GraphLike, ModuleRow, Node
from ..graph.nodes import Column, columns_in, columns_of
from ..graph.tensors import elements_text
from ..graph.terminal import TableColumn, cut, hidden_columns_text, line_width, option, table
from ..graph.text import Text, printable, shorten
from ..graph.units import count_text, seconds_text
from . import labels
from .collectives import merge_equal, payload_text
from .drawing.mark import SEVERITY_SIGNS
from .outline import OutlineRow, outline
from .rank_chart import wait_lines
from .resolve import FindingsLike, graph_and_findings

# Fields of Node whose columns come first, in this order. The other fields follow as declared.
_FIRST_FIELDS = ("seconds", "saved", "scope", "module_class", "where", "attributes", "note")
# If the table is too wide, columns are left out from the end of this list.
_COLUMNS_BY_IMPORTANCE: tuple[str, ...] = (
    "id",
    "node",
    "operation",
    "label",
    "finding",
    "output",
    "note",
    "inputs",
    "gradient",
    "value",
)
_COLUMNS_BY_IMPORTANCE += ("placement", "time", "module", "saved", "where", "class", "attributes")
# Minimum widths in characters. Columns are shortened to these before any column is left out.
_MIN_WIDTHS = {"node": 24, "operation": 14, "label": 16, "finding": 24, "output": 16, "inputs": 7}
_MIN_WIDTHS |= {"note": 20, "placement": 16, "value": 12, "gradient": 12, "module": 16, "where": 14}
_PATHS = ("label", "module", "where")  # columns in which a long text is cut at its beginning
_HEADED = ("scope", "module_class")  # fields without a column if headings show them
_OPTIONAL_COUNTS = ("transfer", "collective")  # the first line mentions these only if there are any
_MAX_CELL = 64  # characters
_MAX_MODULES = 20


def to_text(graph: GraphLike, *, findings: FindingsLike = "auto", wide: bool = False) -> Text:
    """Return the graph as text: nodes in topological order, below the names of their modules.

    Lines fit the terminal, or 80 characters without a terminal. Identical blocks are listed once.
    Empty columns are left out. So are columns that do not fit; the last line names them. Names are
    escaped as in Python literals.

    Args:
        graph: a graph, a tensor or a recording, as in `draw_graph`.
        findings: the findings to mark at nodes and to write below: "auto" for those that `find`
            reports, a list, or None.
        wide: True to write a table of all nodes and columns, with lines of any length.

    >>> from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
    >>> scalar = (TensorMeta((), "float32", "cpu"),)
    >>> x = Node(0, "AccumulateGrad", scalar, "x", leaf="tensor")
    >>> y = Node(1, "ExpBackward0", scalar, "y", "exp")
    >>> graph = Graph((x, y), (Edge(0, 1),), ((1, 0),))
    >>> print(to_text(graph))
    2 nodes, 1 edge, 1 output, all on cpu
    <BLANKLINE>
    id  node     output  inputs
     0  x        f32[]
     1  y = exp  f32[]   0
    <BLANKLINE>
    outputs: 1 (y)
    <BLANKLINE>
    >>> print(to_text(graph, wide=True))
    2 nodes, 1 edge, 1 output, all on cpu
    <BLANKLINE>
    id  label  operation       output  inputs
     0  x      AccumulateGrad  f32[]
     1  y      exp             f32[]   0
    <BLANKLINE>
    outputs: 1 (y)
    <BLANKLINE>
    """
    graph, marked = graph_and_findings(graph, findings=findings)
    width = line_width(wide)
    parts = [_summary(graph, width)]
    if graph.nodes:
        parts.append("\n".join(_nodes(graph, marked, width)))
    if graph.outputs:
        ends = (f"{node}{_output_suffix(graph.nodes[node], nr)}" for node, nr in graph.outputs)
        parts.append(_wrap_indented(f"outputs: {', '.join(ends)}", width))
    if modules := _modules(graph, width):
        parts.append("\n".join(modules))
    if graph.transfers:
        parts.append("\n".join(_transfers(graph, width)))
    if graph.collectives:
        parts.append("\n".join(_collectives(graph, width)))
    if waits := wait_lines(graph.collectives):
        parts.append("\n".join(_wrap_indented(_plain(line), width) for line in waits))
    if graph.cuts:
        parts.append("\n".join(_cuts(graph, width)))
    if graph.untracked:
        parts.append("\n".join(_untracked_table(graph, width)))
    if marked:
        parts.append("\n".join(line for finding in marked for line in _message(finding, width)))
    return Text("\n\n".join(parts) + "\n")


def _summary(graph: Graph, width: int | None) -> str:
    figures = [
        (len(graph.nodes), "node"),
        (len(graph.edges), "edge"),
        (len(graph.outputs), "output"),
        (len(graph.transfers), "transfer"),
        (len(graph.collectives), "collective"),
    ]
    parts = [count_text(n, name) for n, name in figures if n or name not in _OPTIONAL_COUNTS]
    device = _device(graph)
    return _wrap_indented(", ".join(parts + [f"all on {_plain(device)}"] * bool(device)), width)


def _device(graph: Graph) -> str:
    """Return the device of all tensors; "" if there are several devices, or none is known."""
    devices = {meta.device for node in graph.nodes for meta in node.outputs if meta is not None}
    return devices.pop() if len(devices) == 1 else ""


def _nodes(graph: Graph, findings: tuple[Finding, ...], width: int | None) -> Iterator[str]:
    marks = _marks(findings)
    if width is None:
        rows, folded = [OutlineRow("", node) for node in graph.nodes], False
    else:
        rows, folded = outline(graph, marks)
    nodes = [row.node for row in rows if row.node is not None]
    names = [_plain(row.text) for row in rows if row.node is not None]
    cells = _columns(graph, marks, headed=width is not None)
    columns = [
        TableColumn(
            title,
            names if title == "node" else [cell(node) for node in nodes],
            _MIN_WIDTHS.get(title, 0),
            title == "id",
            title in _PATHS,
        )
        for title, cell in cells.items()
    ]
    lines, missing = table(columns, width, _COLUMNS_BY_IMPORTANCE)
    head, *body = lines
    yield head
    space = " " * (max(len("id"), *(len(str(node.id)) for node in nodes)) + 2)
    waiting = iter(body)
    for row in rows:
        heading = f"{space}{printable(row.text)}"
        yield next(waiting) if row.node else cut(heading, width or len(heading))
    if folded:
        yield _wrap_indented(
            f"Identical blocks are listed once; {option('wide')} shows all.", width
        )
    if missing:
        yield _wrap_indented(hidden_columns_text(missing, width), width)


def _marks(findings: tuple[Finding, ...]) -> Mapping[int, dict[str, None]]:
    marks: dict[int, dict[str, None]] = {}
    for finding in findings:
        for node in finding.nodes:
            marks.setdefault(node, {})[f"{SEVERITY_SIGNS[finding.severity]} {finding.rule}"] = None
    return marks


def _columns(
    graph: Graph, marks: Mapping[int, dict[str, None]], *, headed: bool
) -> dict[str, Callable[[Node], str]]:
    """Return column title -> function that returns the text of a node's cell.

    Args:
        graph: the graph.
        marks: node id -> findings to write at the node.
        headed: True if headings name the modules, so that columns for modules are left out.
    """
    inputs, device = graph.inputs(), _device(graph)
    columns: dict[str, Callable[[Node], str]] = {"id": lambda node: str(node.id)}
    if headed:
        columns["node"] = lambda node: node.title
    else:
        columns["label"] = lambda node: _plain(node.label)
        columns["operation"] = lambda node: _plain(
            labels.operation_text(node.title, node.attributes)
        )
    columns["finding"] = lambda node: ", ".join(marks.get(node.id, ()))
    columns["output"] = lambda node: _output(node, device)
    columns["inputs"] = lambda node: ", ".join(_end(graph, edge) for edge in inputs[node.id])
    columns["value"] = lambda node: _flag_nonfinite(f"value {node.value_text}")
    columns["gradient"] = lambda node: "; ".join(
        _flag_nonfinite(labels.gradient(stats)) for stats in node.grad_outputs if stats
    )
    fields = columns_of(Node)
    for name in dict.fromkeys((*_FIRST_FIELDS, *fields)):
        if name != "values" and not (headed and name in _HEADED):
            columns[fields[name].title] = partial(_field, name, fields[name])
    if graph.segments and not headed:
        columns["graph"] = lambda node: _plain(
            next((title for start, title in reversed(graph.segments) if node.id >= start), "")
        )
    return columns


def _flag_nonfinite(line: str) -> str:
    """Return the text of a value or gradient without its first word.

    If the text contains NaN or Inf, an error sign replaces the first word.
    """
    text = line.partition(" ")[2]
    return f"{SEVERITY_SIGNS['error']} {text}" if labels.is_spoilt(line) else text


def _output(node: Node, device: str) -> str:
    text = labels.tensors(node.outputs)
    return text.removesuffix(f" {device}") if device else text


def _field(name: str, column: Column, row: Node | ModuleRow) -> str:
    return _plain(column.text(getattr(row, name)))


def _end(graph: Graph, edge: Edge) -> str:
    several = len(graph.nodes[edge.source].outputs) > 1
    return f"{edge.source}[{edge.output_nr}]" if several else str(edge.source)


def _modules(graph: Graph, width: int | None) -> list[str]:
    """Return the lines of a table of `graph.modules`.

    A column with the same text for all modules is left out.
    """
    columns = columns_in(ModuleRow, graph.modules)
    cells = [
        (_plain(row.path) or "(the model)", *(_field(name, columns[name], row) for name in columns))
        for row in graph.modules
    ]
    rows = [row for row in cells if any(row[1:])]
    if not rows:
        return []
    more = 0 if width is None else len(rows) - _MAX_MODULES
    rows = rows[:_MAX_MODULES] if more > 0 else rows
    titles = ["module", *(column.title for column in columns.values())]
    lines = _rows(titles, rows, width, titles, ())
    return lines + [f"... and {more:,} more ({option('wide')} shows all)"] * (more > 0)


def _transfers(graph: Graph, width: int | None) -> list[str]:
    rows = [
        (
            transfer.kind,
            transfer.source,
            transfer.target,
            labels.shape(transfer.tensor),
            "" if transfer.nbytes is None else f"{transfer.nbytes:,}",
            transfer.phase_text.removeprefix("in "),
            "" if transfer.node is None else str(transfer.node),
            _plain(transfer.label),
            _plain(transfer.where),
            "" if transfer.seconds is None else seconds_text(transfer.seconds),
        )
        for transfer in graph.transfers
    ]
    titles = "transfer", "from", "to", "tensor", "bytes", "phase", "node", "label", "where", "time"
    order = "transfer", "bytes", "phase", "where", "node", "label", "time", "from", "to", "tensor"
    return _rows(titles, rows, width, order, ("bytes", "node"))


def _collectives(graph: Graph, width: int | None) -> list[str]:
    rows = [
        (
            each.kind,
            f"{each.nbytes:,}",
            f"{times:,}",
            ", ".join(filter(None, (each.group, count_text(each.group_size, "rank")))),
            each.phase,
            _plain(each.module),
            _plain(each.where),
            _plain(each.waited_where),
            _plain(payload_text(each)),
        )
        for each, times in merge_equal(graph.collectives)
    ]
    titles = "collective", "bytes", "times", "group", "phase", "module", "where", "waited at", "of"
    order = "collective", "bytes", "times", "group", "where", "module", "of", "waited at", "phase"
    return _rows(titles, rows, width, order, ("bytes", "times"))


def _cuts(graph: Graph, width: int | None) -> list[str]:
    rows = [
        (
            cut.how,
            _plain(cut.label),
            "" if cut.tensor is None else labels.shape(cut.tensor),
            "not in this graph" if cut.before is None else str(cut.before),
            ", ".join(map(str, cut.after)),
            _plain(cut.where),
        )
        for cut in graph.cuts
    ]
    titles = "cut", "of", "tensor", "made by", "used by", "where"
    return _rows(titles, rows, width, ("cut", "where", "of", "made by", "used by"), ())


def _untracked_table(graph: Graph, width: int | None) -> list[str]:
    """Return the lines of a table of data, and of calls without an autograd node.

    The rows have the ids u0, u1, and so on.
    """
    rows = [
        (
            f"u{i}",
            _plain(each.title),
            "" if each.values is None else elements_text(each.values, each.tensors[0].shape),
            ", ".join(map(labels.shape, each.tensors)),
            each.kind if each.kind == "data" else _plain(each.reason),
            ", ".join([*(f"u{i}" for i in each.inputs), *map(str, each.sources)]),
            ", ".join(map(str, each.targets)),
            _plain(each.where),
        )
        for i, each in enumerate(graph.untracked)
    ]
    titles = "no node", "of", "value", "tensor", "why", "inputs", "used by", "where"
    order = "no node", "of", "why", "tensor", "used by", "where", "inputs", "value"
    return _rows(titles, rows, width, order, ())


def _rows(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    order: Sequence[str],
    right: Sequence[str],
) -> list[str]:
    """Return the lines of a table. If a text does not fit its column, its beginning is cut off.

    Args:
        titles: titles of the columns.
        rows: the cells of each row.
        width: characters of a line; None is unlimited.
        order: titles, the most informative first. The last columns are left out first.
        right: titles of columns that are aligned at the right.
    """
    columns = [
        TableColumn(title, cells, 14 if title == "where" else 0, title in right, True)
        for title, cells in zip(titles, zip(*rows, strict=True), strict=True)
    ]
    return table(columns, width, order)[0]


def _message(finding: Finding, width: int | None) -> Iterator[str]:
    where = f" at {_plain(finding.where)}" if finding.where else ""
    yield f"{SEVERITY_SIGNS[finding.severity]} {finding.severity}: {finding.rule}{where}"
    for text in (finding.message, finding.advice):
        if text:
            yield _wrap_indented(printable(text), width, "  ")


def _wrap_indented(text: str, width: int | None, indent: str = "") -> str:
    """Wrap a text to `width` characters; lines after the first are indented."""
    if width is None:
        return indent + text
    lines = wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent or '  '}")
    return "\n".join(lines)


def _output_suffix(node: Node, output_nr: int) -> str:
    """Return the known name and value of an output in parentheses; "" if neither is known."""
    known = node.values[output_nr] if output_nr < len(node.values) else None
    said = [_plain(node.label)] if node.label else []
    if known is not None:
        meta = node.outputs[output_nr] if output_nr < len(node.outputs) else None
        said.append(elements_text(known, meta and meta.shape))
    return f" ({' '.join(said)})" if said else ""


def _plain(text: str) -> str:
    """Return a text on one line, shortened if it is too long."""
    return shorten(printable(text), _MAX_CELL)
