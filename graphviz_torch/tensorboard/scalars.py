"""Write the gradients and transfers of a training run to TensorBoard.

- Images tab: the gradient norm of each layer, in order of depth.
- Custom Scalars tab: charts of the norms over the steps. The Scalars tab has the same numbers.
- Histograms tab: a ridge plot of all norms, in which bucket i is layer i.
- Text tab: the copies between devices and the collectives of a step.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..findings.check import find
from ..graph import Collective, Graph, GraphLike, Transfer, graph_of
from ..graph.tensors import total_norm
from ..graph.text import printable
from ..graph.units import bytes_text, count_text
from ..render.collectives import merge_equal, payload_text
from ..render.dot.layout import LayoutError, escape, layout
from ..render.style import palette
from .module_norms import NormSeries
from .writer import require

_series: dict[tuple[str, str], NormSeries] = {}  # (directory, tag) -> builder of its summaries


def gradient_norms(graph: Graph) -> dict[str, float]:
    """Return the gradient norm of each layer, first layer first.

    A layer consists of the parameters of one module, without those of its submodules. A parameter
    outside of any module, or without a name, is a layer of its own. The norm is the Euclidean norm
    over all gradients that were recorded, divided by the loss scale if there is one. It is NaN or
    Inf if a gradient contains NaN or Inf.
    """
    first: dict[int, int] = {}
    for edge in graph.edges:
        first[edge.source] = min(edge.target, first.get(edge.source, edge.target))
    norms: dict[str, list[float]] = {}
    leaves = [node for node in graph.nodes if node.title == "AccumulateGrad"]
    for leaf in sorted(leaves, key=lambda leaf: first.get(leaf.id, leaf.id)):
        stats = [entry for entry in leaf.grad_outputs if entry is not None]
        if stats:
            label = leaf.label or f"node {leaf.id}"
            layer = leaf.module or label.rpartition(".")[0] or label
            norms.setdefault(layer, []).extend([each.whole_norm for each in stats])
    scale = graph.step.loss_scale or 1.0
    return {layer: total_norm(values) / scale for layer, values in norms.items()}


def add_gradients(
    gradients: GraphLike | Mapping[str, float],
    logdir_or_writer: Any,
    *,
    step: int,
    tag: str = "gradient norm",
) -> None:
    """Write the gradient norm of each layer: a picture, charts over the steps, and a ridge plot.

    The picture is in the Images tab, and shows the norms of this step in order of depth. The charts
    are in the Custom Scalars tab: one for all layers, and for a large model further ones for its
    blocks. The ridge plot is in the Histograms tab. The first call in a process writes no scalars
    and charts; the second call writes those of both steps.

    Args:
        gradients: a recording, its graph, or a dict from layers to norms, first layer first.
        logdir_or_writer: a directory, or a `SummaryWriter`.
        step: the training step.
        tag: first part of all names. Scalars are named "<tag>/<layer>", the picture "<tag> of each
            layer", the ridge plot "<tag> by depth". In the ridge plot, the count of the bucket from
            i to i + 1 is the norm of layer i; the info button (i) of the plot lists the layers.

    Warns:
        RuntimeWarning: if the picture cannot be drawn because Graphviz is missing. The numbers are
            written nevertheless.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        ValueError: if no gradient was recorded.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as runs:
    ...     for step in range(3):
    ...         add_gradients({"conv": 0.5 / (step + 1), "head": 2.0}, runs, step=step)
    """
    require()
    from .events import directory, image, writing

    norms = (
        dict(gradients) if isinstance(gradients, Mapping) else gradient_norms(graph_of(gradients))
    )
    if not norms:
        raise ValueError(
            "no gradient was recorded: run backward inside `with record(model) as recording:` "
            "and pass recording.graph."
        )
    series = _series.setdefault((directory(logdir_or_writer), tag), NormSeries(tag))
    summaries = series.summaries(norms, step)
    try:
        png = depth_png(norms, f"{tag} of each layer, step {step}")
        summaries.append((image(f"{tag} of each layer", png), step))
    except LayoutError as error:
        message = f"add_gradients() cannot draw the picture: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    with writing(logdir_or_writer) as write:
        for summary, when in summaries:
            write(summary, when)


def add_distribution(
    logdir_or_writer: Any,
    name: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    step: int,
    tag: str = "gradient",
) -> None:
    """Write the histogram of one gradient for the Histograms and Distributions tabs.

    Args:
        logdir_or_writer: a directory, or a `SummaryWriter`.
        name: name of the parameter; the tag is "<tag>/<name>".
        edges: bounds of the buckets in ascending order, as `torch.histogram` returns them.
        counts: number of elements in each bucket; `edges` has one number more.
        step: the training step.
        tag: prefix of the tag.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        ValueError: if the numbers of edges and counts do not match.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as runs:
    ...     add_distribution(runs, "fc.weight", [-1.0, 0.0, 1.0], [3, 5], step=0)
    """
    require()
    from .events import buckets, writing

    if len(edges) != len(counts) + 1:
        raise ValueError(
            f"{name}: {len(edges)} edges and {len(counts)} counts: pass one edge more than counts."
        )
    rows = [
        (float(low), float(high), float(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    with writing(logdir_or_writer) as write:
        write(buckets(f"{tag}/{name}", rows), step)


def add_transfers(
    graph: GraphLike, logdir_or_writer: Any, *, step: int, tag: str = "transfers"
) -> None:
    """Write the copies between devices as a table for the Text tab, with totals and findings.

    A second table has the collectives between ranks.

    Args:
        graph: a recording or its graph.
        logdir_or_writer: a directory, or a `SummaryWriter`.
        step: the training step.
        tag: name of the text.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.

    >>> import torch
    >>> from graphviz_torch import record, simulate_accelerator
    >>> from tempfile import TemporaryDirectory
    >>> with simulate_accelerator() as [device], record() as recording:
    ...     (torch.ones(3, requires_grad=True).to(device) * 2).sum().backward()
    >>> with TemporaryDirectory() as runs:
    ...     add_transfers(recording, runs, step=0)
    """
    require()
    from .events import markdown_summary, writing

    with writing(logdir_or_writer) as write:
        write(markdown_summary(tag, transfers_markdown(graph_of(graph))), step)


_COPIES = ("copy", "phase", "tensor", "copies", "bytes", "ms", "how", "where")
_COLLECTIVES = ("collective", "phase", "times", "bytes", "group", "of", "where")
_ROWS = 500  # maximum number of rows in a table; a line below it sums up the other rows


def transfers_markdown(graph: Graph) -> str:
    """Return Markdown with totals for each direction, findings, and tables.

    The first table has the copies between devices, the largest first. Identical copies at the same
    source line share a row. The time of a row, in milliseconds, is measured on the device; it is
    empty unless all copies of the row were measured. The second table has the collectives, in
    program order.

    >>> from graphviz_torch.graph import Graph
    >>> transfers_markdown(Graph(()))
    'No transfer was recorded.'
    """
    parts = [_copies_of(graph)] if graph.transfers else []
    parts += [_collectives_of(graph)] if graph.collectives else []
    return "\n\n".join(parts) or "No transfer was recorded."


def _copies_of(graph: Graph) -> str:
    lines = []
    for kind in sorted({transfer.kind for transfer in graph.transfers}):
        some = [transfer for transfer in graph.transfers if transfer.kind == kind]
        lines.append(f"- **{kind}**: {_copies(len(some))}, {_total(some)}")
    for finding in find(graph):
        if finding.transfers:
            where = f" ({_cell(finding.where)})" if finding.where else ""
            lines.append(
                f"- **{finding.severity}**: {_cell(finding.message)} {_cell(finding.advice)}{where}"
            )
    groups: dict[Transfer, list[Transfer]] = {}
    for transfer in graph.transfers:
        groups.setdefault(_without_position(transfer), []).append(transfer)
    rows = sorted(groups.values(), key=lambda some: -sum(t.nbytes or 0 for t in some))
    lines += ["", *_table(_COPIES, map(_row, rows[:_ROWS]))]
    if len(rows) > _ROWS:
        rest = [transfer for some in rows[_ROWS:] for transfer in some]
        lines += ["", f"And {_copies(len(rest))} more, {_total(rest)}."]
    return "\n".join(lines)


def _collectives_of(graph: Graph) -> str:
    lines = []
    for kind in sorted({each.kind for each in graph.collectives}):
        some = [each for each in graph.collectives if each.kind == kind]
        total = bytes_text(sum(each.nbytes for each in some))
        lines.append(f"- **{kind}**: {count_text(len(some), 'time')}, {total} given")
    rows = merge_equal(graph.collectives)
    lines += [
        "",
        *_table(_COLLECTIVES, (_collective_row(each, times) for each, times in rows[:_ROWS])),
    ]
    if len(rows) > _ROWS:
        more = sum(times for _, times in rows[_ROWS:])
        lines += ["", f"And {count_text(more, 'collective')} more."]
    return "\n".join(lines)


def _collective_row(each: Collective, times: int) -> list[str]:
    return [
        each.kind,
        each.phase,
        str(times),
        bytes_text(each.nbytes * times),
        _cell(", ".join(filter(None, (each.group, count_text(each.group_size, "rank"))))),
        _cell(payload_text(each)),
        _cell(" ".join(filter(None, (each.where, each.module)))),
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"|{'|'.join(titles)}|"
    yield "|---" * len(titles) + "|"
    for row in rows:
        yield f"|{'|'.join(row)}|"


def _without_position(transfer: Transfer) -> Transfer:
    return replace(
        transfer, node=None, seconds=None, used=None, data=None, in_forward=None, moment=None
    )


def _row(some: list[Transfer]) -> list[str]:
    first = some[0]
    seconds = [transfer.seconds for transfer in some]
    measured = [value for value in seconds if value is not None]
    memory = {None: "", True: "pinned", False: "pageable"}[first.pinned]
    how = (first.operation, memory, "non-blocking" if first.non_blocking else "")
    return [
        _cell(f"{first.kind} {first.source} → {first.target}"),
        first.phase,
        _cell(f"{first.label}: {first.tensor}" if first.label else str(first.tensor)),
        str(len(some)),
        _total(some),
        f"{sum(measured) * 1e3:.3g}" if len(measured) == len(some) else "",
        _cell(", ".join(filter(None, how))),
        _cell(" ".join(filter(None, (first.where, first.module)))),
    ]


def _total(some: list[Transfer]) -> str:
    known = [transfer.nbytes for transfer in some if transfer.nbytes is not None]
    text = bytes_text(sum(known))
    return (
        text if len(known) == len(some) else f"{text} and {len(some) - len(known)} of unknown size"
    )


def _copies(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _cell(text: str) -> str:
    """Escape all characters that have a meaning in Markdown or in its tables."""
    text = printable(text.replace("\n", " "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]#])", r"\\\1", text)
    return text.replace("|", "&#124;")


_MAX_LAYERS = 120  # with more layers, only every n-th layer is shown
_WIDTH = 320.0  # width of the longest bar in points


def depth_dot(norms: Mapping[str, float], title: str) -> str:
    """Return the chart as DOT text, with one row for each layer.

    Args:
        norms: the gradient norm of each layer, first layer first.
        title: title of the chart.

    >>> "1e-05 to 0.1" in depth_dot({"first": 2e-5, "last": 0.05}, "step 3")
    True
    """
    colors = palette("light")
    sizes = [norm for norm in norms.values() if 0 < norm < math.inf]
    low = math.floor(math.log10(min(sizes))) if sizes else 0
    high = max(math.ceil(math.log10(max(sizes))), low + 1) if sizes else 1
    said = f"{title} · bars from {10.0**low:g} to {10.0**high:g}, logarithmic"
    every = math.ceil(len(norms) / _MAX_LAYERS)
    if every > 1:
        said += f" · one of {every} layers, of {len(norms)}"
    rows = [f'<TR><TD COLSPAN="3" ALIGN="LEFT"><B>{escape(said)}</B></TD></TR>']
    for layer, norm in list(norms.items())[::every]:
        good = math.isfinite(norm)
        bar = ""
        if good and norm > 0:
            width = 2 + _WIDTH * (math.log10(norm) - low) / (high - low)
            size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="10"'
            cells = f'<TD {size} BGCOLOR="{colors["input_line"]}"></TD>'
            # An empty cell after the bar fills the width, because Graphviz centers a narrow table.
            rest = f'FIXEDSIZE="TRUE" WIDTH="{2 + _WIDTH - width + 1:.0f}" HEIGHT="10"'
            cells += f"<TD {rest}></TD>"
            bar = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0"><TR>{cells}</TR></TABLE>'
        color = colors["muted" if good and norm else "error"]
        rows.append(
            f'<TR><TD ALIGN="RIGHT">{escape(layer)}</TD><TD ALIGN="LEFT" WIDTH="{_WIDTH:.0f}">{bar}'
            f'</TD><TD ALIGN="LEFT"><FONT COLOR="{color}">{norm:.3g}</FONT></TD></TR>'
        )
    table = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1">{"".join(rows)}</TABLE>'
    look = f'shape=plain fontname="DejaVu Sans" fontsize=10 fontcolor="{colors["ink"]}"'
    head = f'graph [pad=0.15 bgcolor="{colors["background"]}"]'
    return f"digraph {{\n\t{head}\n\tlayers [{look} label=<{table}>]\n}}\n"


def depth_png(norms: Mapping[str, float], title: str) -> bytes:
    """Return the chart as PNG.

    Raises:
        LayoutError: if Graphviz is missing or fails.
    """
    return layout(depth_dot(norms, title), "png")
