"""Gradient norms over the steps of a training: scalars, their charts, and a ridge plot by depth.

A scalar of one step is a card with one point, and a large model has a hundred of them. So the first
step's are written with the second's; what tells of one step, the ridge plot, is written at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_LINES = 12  # of a chart of all layers
# The part that a layer is in, of its path: the first block of a list, else a child of the model.
_PART = re.compile(r"[^.]+(\.[^.]+)*?\.\d+(?=\.|$)|[^.]+")


class NormSeries:
    """What is written of gradient norms step by step.

    Args:
        tag: the scalars are "<tag>/<layer>", the ridge plot "<tag> by depth".
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._first: tuple[int, Mapping[str, float]] | None = None  # step and norms
        self._charted: dict[str, None] = {}  # layers that the layout of the charts has

    def summaries(self, norms: Mapping[str, float], step: int) -> list[tuple[Any, int]]:
        """Summaries to write now, each with its step. Norms are by layer, first layer first.

        The same step again takes the place of the one before.
        """
        from .events import charts, scalars

        if not self._charted and (self._first is None or self._first[0] == step):
            self._first = step, dict(norms)
            return [(ridge(norms, self._tag), step)]
        found = []
        if self._first is not None:
            before, those = self._first
            self._first = None
            found.append((scalars(self._named(those)), before))
        found += [(scalars(self._named(norms)), step), (ridge(norms, self._tag), step)]
        if not norms.keys() <= self._charted.keys():
            self._charted |= dict.fromkeys(norms)
            found.append((charts(self._tag, chart_lines(self._charted, self._tag)), step))
        return found

    def _named(self, norms: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._tag}/{layer}": norm for layer, norm in norms.items()}


def ridge(norms: Mapping[str, float], tag: str) -> Any:
    """A histogram whose bucket i, from i to i + 1, has the norm of layer i for a count."""
    from .events import buckets

    # It has no place for NaN and Inf: they are 0 here, and NaN and Inf in the scalars.
    rows = [
        (float(i), float(i + 1), norm if math.isfinite(norm) else 0.0)
        for i, norm in enumerate(norms.values())
    ]
    layers = ", ".join(f"{i}: `{layer}`" for i, layer in enumerate(norms))
    return buckets(f"{tag} by depth", rows, description=f"Layers: {layers}")


def chart_lines(layers: Iterable[str], tag: str) -> dict[str, list[str]]:
    """The tags of each chart over the steps: all layers, or some of them, and those of each part.

    The first chart has at most a dozen lines, from the first layer to the last. A part is a block
    of a list, or a child of the model, with all of its layers; layers alone in theirs share one.

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
