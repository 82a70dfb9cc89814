"""Estimate the difference of two results from their fingerprints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import Edge, Fingerprint, Graph

ALONG, NEAR, FIRST, WHOLE = slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)

# dtype -> relative difference of two results that differ only in the order of sums.
ROUNDING = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


def rounding_of(graph: Graph, inputs: Sequence[Sequence[Edge]]) -> list[float]:
    """Return, for each node, the largest rounding error of the dtypes at and upstream of it."""
    found: list[float] = []
    for node in graph.nodes:
        dtypes = [meta.dtype for meta in node.outputs if meta is not None]
        own = [ROUNDING.get(dtype, ROUNDING["float32"]) for dtype in dtypes]
        found.append(max(own + [found[edge.source] for edge in inputs[node.id]], default=1e-5))
    return found


def is_identifying(value: Fingerprint | None) -> bool:
    """Return True if a fingerprint belongs to a finite result with elements."""
    return (
        value is not None
        and math.isfinite(value.norm + value.mean + value.least + value.greatest)
        and value.elements > 0
    )


def distance(a: Fingerprint, b: Fingerprint, *, places: bool) -> float:
    """Return a lower bound on the relative difference of two results.

    The distance is inf if the results have different numbers of elements.

    Args:
        a, b: fingerprints of the results.
        places: True to compare elements position by position, False to ignore the order of
            elements.

    >>> one = Fingerprint(2, 5.0, 3.5, 3.0, 4.0, (0, 0, 0, 0, 0, 0, 7.0, 3.64))
    >>> round(distance(one, one._replace(norm=5.05), places=True), 4)
    0.0099
    """
    if a.elements != b.elements:
        return math.inf
    size, peak = max(a.norm, b.norm), max(map(abs, (a.least, a.greatest, b.least, b.greatest)))
    if size == 0 or peak == 0:
        return 0.0
    *here, sizes_a, cubes_a = a.projections
    *there, sizes_b, cubes_b = b.projections
    found = [
        abs(a.norm - b.norm) / size,
        abs(a.mean - b.mean) * math.sqrt(a.elements) / size,
        abs(a.least - b.least) / peak,
        abs(a.greatest - b.greatest) / peak,
        abs(sizes_a - sizes_b) / max(sizes_a, sizes_b, size),
        abs(cubes_a - cubes_b) / peak,
    ]
    if places:
        found += _differences(here, there, size)
    return max([each for each in found if math.isfinite(each)], default=0.0)


def equal_projections(a: Fingerprint, b: Fingerprint, part: slice, tolerance: float) -> bool:
    """Return True if a slice of the projections of two fingerprints is equal up to a tolerance."""
    size = max(a.norm, b.norm)
    differing = _differences(a.projections[part], b.projections[part], size)
    return max(differing, default=0.0) <= tolerance


def _differences(a: Sequence[float], b: Sequence[float], size: float) -> list[float]:
    return [abs(x - y) / size for x, y in zip(a, b, strict=True)]
