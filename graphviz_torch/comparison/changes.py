"""What differs between a node and the one that stands for it in another graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..graph import GradientStats, Node
from ..graph.column import Column, declared, recorded
from ..graph.units import number_text, seconds_text

# Two runs of the same program differ by this much: float32 sums in another order, relative.
GRADIENT_TOLERANCE = 1e-4
_SHORTEST = 1e-4  # seconds: what takes less differs by chance


@dataclass(frozen=True, slots=True)
class Change:
    """One thing about a node that is in both graphs, and that differs."""

    a: int  # the node's id in the first graph
    b: int  # and in the second
    # "shape", "dtype", "device", "attribute", "gradient", "time", or a compared field's title.
    what: str
    before: str
    after: str


def changes(a: Node, b: Node, gradient_tolerance: float, time_tolerance: float) -> Iterator[Change]:
    """What changed from `a` to `b`; the tolerances are those of `diff`."""
    if a.outputs != b.outputs:
        yield from _outputs(a, b)
    if a.attributes != b.attributes:
        yield from _attributes(a, b)
    # Only what both have is compared: a graph that was traced has no gradients to differ in.
    for before, after in zip(a.grad_outputs, b.grad_outputs, strict=False):
        if before is not None and after is not None and _differs(before, after, gradient_tolerance):
            yield Change(a.id, b.id, "gradient", _gradient(before), _gradient(after))
    if a.seconds is not None and b.seconds is not None:
        longest = max(a.seconds, b.seconds)
        if longest > _SHORTEST and longest > (1 + time_tolerance) * min(a.seconds, b.seconds):
            yield Change(a.id, b.id, "time", seconds_text(a.seconds), seconds_text(b.seconds))
    for name, column in _compared():
        values = getattr(a, name), getattr(b, name)
        if all(map(recorded, values)) and values[0] != values[1]:
            yield Change(a.id, b.id, column.title, *map(column.words, values))


@cache
def _compared() -> tuple[tuple[str, Column], ...]:
    """The fields of a node that are compared as they are, with their declarations."""
    return tuple(each for each in declared(Node).items() if each[1].compared)


def _outputs(a: Node, b: Node) -> Iterator[Change]:
    """The outputs whose shape, dtype or device differs."""
    many = len(a.outputs) > 1 or len(b.outputs) > 1
    for nr in range(max(len(a.outputs), len(b.outputs))):
        left = a.outputs[nr] if nr < len(a.outputs) else None
        right = b.outputs[nr] if nr < len(b.outputs) else None
        where = f"output {nr} " if many else ""
        if left is None or right is None:
            if left is not right:
                yield Change(
                    a.id, b.id, "shape", f"{where}{left or 'undefined'}", str(right or "undefined")
                )
            continue
        if left.shape != right.shape:
            yield Change(a.id, b.id, "shape", f"{where}{list(left.shape)}", str(list(right.shape)))
        if left.dtype != right.dtype:
            yield Change(a.id, b.id, "dtype", f"{where}{left.dtype}", right.dtype)
        if left.device != right.device:
            yield Change(a.id, b.id, "device", f"{where}{left.device}", right.device)


def _attributes(a: Node, b: Node) -> Iterator[Change]:
    """The attributes that both nodes have, where their shapes are the same: sizes follow those."""
    if [meta and meta.shape for meta in a.outputs] != [meta and meta.shape for meta in b.outputs]:
        return
    after = dict(text.partition("=")[::2] for text in b.attributes)
    for name, value in (text.partition("=")[::2] for text in a.attributes):
        if after.get(name, value) != value:
            yield Change(a.id, b.id, "attribute", f"{name}={value}", f"{name}={after[name]}")


def _differs(a: GradientStats, b: GradientStats, tolerance: float) -> bool:
    if math.isinf(tolerance):
        return False
    if a.extent != b.extent:  # numbers of a part say nothing of the whole
        return True
    if (a.nan, a.inf) != (b.nan, b.inf):
        return True
    scale = tolerance * max(a.norm, b.norm)
    return abs(a.norm - b.norm) > scale or abs(a.max_abs - b.max_abs) > scale


def _gradient(stats: GradientStats) -> str:
    bad = f" with {stats.nan} NaN and {stats.inf} Inf" if stats.nonfinite else ""
    of = f" of the {stats.extent}" if stats.extent else ""
    return f"norm {number_text(stats.norm)}, max {number_text(stats.max_abs)}{bad}{of}"
