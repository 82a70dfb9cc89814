"""Build TensorBoard summaries of gradient norms over the steps of a training run.

The summaries are scalars, charts and a ridge plot. After a single step, the Scalars tab would show
a card with only one point for each layer. The scalars of the first step are therefore written
together with those of the second step. The ridge plot, which shows single steps, is written at
once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_LINES = 12  # maximum number of lines in the chart of all layers
# Matches the part of the model to which a layer belongs: the layer's path up to the first number,
# such as "encoder.layers.3" or, without a number, the first name, such as "head".
_PART = re.compile(r"[^.]+(\.[^.]+)*?\.\d+(?=\.|$)|[^.]+")


class NormSeries:
    """A builder of summaries, which is called with the gradient norms of each step.

    Args:
        tag: first part of all names: scalars are "<tag>/<layer>", the ridge plot "<tag> by depth".
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._first: tuple[int, Mapping[str, float]] | None = None  # (first step, its norms)
        self._charted: dict[str, None] = {}  # layers in the current layout of charts

    def summaries(self, norms: Mapping[str, float], step: int) -> list[tuple[Any, int]]:
        """Return the (summary, step) pairs to write now.

        If this method is called again for the first step, the later norms are used.

        Args:
            norms: the gradient norm of each layer, first layer first.
            step: the training step.
        """
        from .events import charts, scalars

        if not self._charted and (self._first is None or self._first[0] == step):
            self._first = step, dict(norms)
            return [(ridge(norms, self._tag), step)]
        found = []
        if self._first is not None:
            before, those = self._first
            self._first = None
            found.append((scalars(self._with_tag(those)), before))
        found += [(scalars(self._with_tag(norms)), step), (ridge(norms, self._tag), step)]
        if not norms.keys() <= self._charted.keys():
            self._charted |= dict.fromkeys(norms)
            found.append((charts(self._tag, chart_lines(self._charted, self._tag)), step))
        return found

    def _with_tag(self, norms: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._tag}/{layer}": norm for layer, norm in norms.items()}


def ridge(norms: Mapping[str, float], tag: str) -> Any:
    """Return a histogram in which the bucket from i to i + 1 has the norm of layer i as count."""
    from .events import buckets

    # A histogram cannot contain NaN or Inf, which become 0 here. The scalars have the true values.
    rows = [
        (float(i), float(i + 1), norm if math.isfinite(norm) else 0.0)
        for i, norm in enumerate(norms.values())
    ]
    layers = ", ".join(f"{i}: `{layer}`" for i, layer in enumerate(norms))
    return buckets(f"{tag} by depth", rows, description=f"Layers: {layers}")


def chart_lines(layers: Iterable[str], tag: str) -> dict[str, list[str]]:
    """Return title of a chart -> tags of the scalars that it shows.

    The first chart has at most twelve layers, evenly spaced from the first to the last. If the
    model has more layers, each part of the model (a block of a list, or a child of the model) has a
    chart of its own. Parts with a single layer share a chart.

    >>> list(chart_lines([f"gpt.h.{i}.{j}" for i in (0, 1) for j in range(8)], "norm"))
    ['12 of 16 layers, first to last', 'gpt.h.0', 'gpt.h.1']
    >>> list(chart_lines(["embed", *(f"blocks.{i}.{j}" for i in (0, 1) for j in range(8))], "norm"))
    ['12 of 17 layers, first to last', 'blocks.0', 'blocks.1', 'other layers']
    """
    layers = list(layers)
    tags = [f"{tag}/{layer}" for layer in layers]
    if len(tags) <= _LINES:
        return {"all layers": tags}
    some = [tags[i * (len(tags) - 1) // (_LINES - 1)] for i in range(_LINES)]
    parts: dict[str, list[str]] = {}
    for layer in layers:
        name = _PART.match(layer)
        parts.setdefault(name[0] if name else layer, []).append(f"{tag}/{layer}")
    alone = [tag for lines in parts.values() if len(lines) == 1 for tag in lines]
    return {
        f"{_LINES} of {len(tags)} layers, first to last": some,
        **{part: lines for part, lines in parts.items() if len(lines) > 1},
        **({"other layers": alone} if alone else {}),
    }
