"""Write gradients and transfers of a training to TensorBoard's other tabs.

Images: the gradient norm of each layer by depth. Custom Scalars: charts of the norms over the
steps, with the numbers under Scalars. Histograms: a ridge plot of all norms, where bucket i is
layer i in order of depth. Text: the transfers between devices and ranks of a step.
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
    """Return the gradient norm of each layer (all parameters of one module), first layer first.

    Euclidean, over parameters with a recorded gradient, divided by the loss scale if the graph has
    one. NaN or Inf in a gradient makes the norm NaN or Inf. A parameter outside of any module, or
    without a name, is a layer of its own.
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
    """Write gradient norms by layer: a picture by depth, charts over the steps, and a ridge plot.

    The picture is in the Images tab. Charts, in the Custom Scalars tab, show many layers in one,
    and parts of a large model in more. The ridge plot is a histogram. Charts and scalars are
    written from the second step of a process on, which also writes those of the first.

    Args:
        gradients: a recording, its graph, or norms by layer, first layer first.
        logdir_or_writer: a directory, or a `SummaryWriter`.
        step: the training step.
        tag: scalars are named "<tag>/<layer>", the picture "<tag> of each layer", the ridge plot
            "<tag> by depth". In the ridge plot, the bucket from i to i + 1 has the norm of layer i
            as its count; the card's (i) lists the layers.

    Warns:
        RuntimeWarning: if Graphviz is missing for the picture; the numbers are written.

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
    """Write the histogram of one gradient for the Histograms and Distributions tabs.

    Args:
        logdir_or_writer: a directory, or a `SummaryWriter`.
        name: name of the parameter; the tag is "<tag>/<name>".
        edges: ascending bounds of the buckets, one more than `counts`, as `torch.histogram` returns
            them.
        counts: elements in each bucket.
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

    Collectives between ranks follow in a second table.

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
