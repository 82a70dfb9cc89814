"""Gradients and transfers over the steps of a training, in TensorBoard's other tabs.

Images: the gradient norm of each layer by depth. Custom Scalars: charts of them over the steps; the
numbers are under Scalars. Histograms: all in one ridge plot, the layers in order of depth where a
histogram has its buckets. Text: what a step moves between devices and ranks. Everything takes plain
values; `watch` writes its norms by it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import Graph, GraphLike, graph_of
from ..graph.tensors import total_norm
from ..render.dot.layout import LayoutError
from .depth import depth_png
from .series import NormSeries
from .tables import transfers_markdown
from .writer import require

_series: dict[tuple[str, str], NormSeries] = {}  # by directory and tag


def gradient_norms(graph: Graph) -> dict[str, float]:
    """Gradient norm of each layer, that is of all parameters of one module, first layer first.

    Euclidean, over the parameters whose gradient was recorded; divided by the loss scale where the
    graph has one. A gradient with NaN makes it NaN, one with Inf makes it Inf. A parameter outside
    any module, or one without a name, stands for itself.
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
    """Write gradient norms by layer: a picture by depth, charts over the steps, a ridge plot.

    The picture is for the Images tab. The charts, for the Custom Scalars tab, have the lines of
    many layers in one, and more for the parts of a large model. The ridge plot is a histogram.
    Charts and scalars come with the second step of a process, which writes those of the first, too.

    Args:
        gradients: a recording, its graph, or norms by layer, first layer first.
        logdir_or_writer: a directory, or a `SummaryWriter`.
        step: the training step.
        tag: scalars are "<tag>/<layer>", the picture is "<tag> of each layer", the ridge plot
            "<tag> by depth". There, layer i has the bucket from i to i + 1, and its norm for a
            count; the card's (i) lists the layers.

    Warns:
        RuntimeWarning: if there is no Graphviz for the picture; the numbers are written.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        ValueError: if there is no gradient.

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
        message = f"add_gradients() writes no picture: {error}"
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
    """Write one gradient's histogram, for the Histograms and the Distributions tab.

    Args:
        logdir_or_writer: a directory, or a `SummaryWriter`.
        name: the parameter's; the tag is "<tag>/<name>".
        edges: ascending bounds of the buckets, one more than there are `counts`, as
            `torch.histogram` returns them.
        counts: elements in each bucket.
        step: the training step.
        tag: what stands before the name.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        ValueError: if the numbers of edges and counts do not fit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as runs:
    ...     add_distribution(runs, "fc.weight", [-1.0, 0.0, 1.0], [3, 5], step=0)
    """
    require()
    from .events import buckets, writing

    if len(edges) != len(counts) + 1:
        raise ValueError(
            f"{name}: {len(edges)} edges for {len(counts)} counts; one edge more is needed."
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
    """Write the graph's transfers as a table for the Text tab, with totals and findings.

    What went between ranks is a table below it.

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
    from .events import markdown, writing

    with writing(logdir_or_writer) as write:
        write(markdown(tag, transfers_markdown(graph_of(graph))), step)
