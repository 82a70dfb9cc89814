"""Find the axis of the samples in a graph, and their number."""

from __future__ import annotations

import weakref

from ..graph import Node
from .axes import (
    Axes,
    AxisReading,
    Dimension,
)
from .graph_reading import Reading

LOSSES = {"nll_loss", "mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"}
LOSSES |= {"binary_cross_entropy_with_logits", "binary_cross_entropy"}


def losses_of(reading: Reading) -> list[Node]:
    """Return the nodes of losses through which a backward ran."""
    return [n for n in reading.graph.nodes if n.operation in LOSSES and n.order is not None]


def counts_of_samples(reading: Reading) -> set[int]:
    """Return the batch sizes of the losses."""
    shapes = (_first_shape(reading, node.id) for node in losses_of(reading))
    return {shape[0] for shape in shapes if shape}


def sample_axes(reading: Reading, axes: list[Axes]) -> list[Dimension]:
    """Return the axis of the samples of each loss, the first axis of its input."""
    every = (_axes_of_samples(reading, axes, node.id) for node in losses_of(reading))
    return [dims[0] for dims in every if dims and dims[0]]


def _first_shape(reading: Reading, node: int) -> tuple[int, ...]:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else shape_of(reading, source)


def _axes_of_samples(reading: Reading, axes: list[Axes], node: int) -> Axes:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else axes[source]


def axis_reading(reading: Reading) -> AxisReading:
    """Return the axes of a graph; they are computed once and cached."""
    found: AxisReading | None = reading.__dict__.get("_axes")
    if found is None:
        # A weak reference to the reading avoids a reference cycle.
        found = reading.__dict__["_axes"] = AxisReading(weakref.proxy(reading))
    return found


def shape_of(reading: Reading, node: int) -> tuple[int, ...]:
    """Return the shape of a node's first output; () if it is unknown."""
    meta = reading.meta(node)
    return () if meta is None else tuple(meta.shape)
