"""Write the gradients and transfers of a training run to TensorBoard.

- Images tab: the gradient norm of each layer, in order of depth.
- Custom Scalars tab: charts of the norms over the steps. The Scalars tab has the same numbers.
- Histograms tab: a ridge plot of all norms, in which bucket i is layer i.
- Text tab: the copies between devices and the collectives of a step.
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
