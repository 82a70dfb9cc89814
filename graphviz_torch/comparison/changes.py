"""Compare the fields of a node or module with those of its match in another graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from ..graph import GradientStats, Graph, ModuleRow, Node
from ..graph.immutable import immutable
from ..graph.nodes import Column, columns_of, is_recorded
from ..graph.units import bytes_text, number_text, seconds_text

# A gradient is changed if its relative difference is larger than this. Float32 sums that are
# computed in another order differ by less.
GRADIENT_TOLERANCE = 1e-4
Row = TypeVar("Row", Node, ModuleRow)
_MIN_SECONDS = 1e-4  # shorter times are not compared, because they vary too much


@immutable
class Change:
    """A field that differs between two matched nodes."""

    a: int  # id of the node in the first graph
    b: int  # id of the node in the second graph
    # Name of the field: "shape", "dtype", "device", "attribute", "gradient", "time", or a column
    # title.
    what: str
    before: str
    after: str


@immutable
class ModuleChange:
    """A field that differs between two matched modules."""

    path: str  # path of the module in the second graph
    what: str  # title of the field
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path or '(the model)'}: {self.what} {self.before} -> {self.after}"


@immutable
class CollectiveChange:
    """A change in the number or bytes of a module's collectives of one kind and group."""

    path: str  # path of the module in the second graph
    kind: str
    group: str
    before: tuple[int, int]  # (number of collectives, sum of their bytes) in the first graph
    after: tuple[int, int]  # the same in the second graph

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        group = f" ({self.group})" if self.group else ""
        (many, size), (many_after, size_after) = self.before, self.after
        return (
            f"{where}{self.kind}{group} {many:,}, {bytes_text(size)} -> "
            f"{many_after:,}, {bytes_text(size_after)}"
        )


def collective_changes(
    a: Graph, b: Graph, renamed: Iterable[tuple[str, str]]
) -> Iterator[CollectiveChange]:
    """Yield the changes in the number or bytes of collectives.

    Yield nothing if one of the graphs has no recorded backward.

    Args:
        a, b: the graphs.
        renamed: (path in `a`, path in `b`) of each renamed module.
    """
    if not all(any(node.order is not None for node in graph.nodes) for graph in (a, b)):
        return
    before, after = _count_collectives(a, tuple(renamed)), _count_collectives(b, ())
    for key in sorted({*before, *after}):
        values = before.get(key, (0, 0)), after.get(key, (0, 0))
        if values[0] != values[1]:
            yield CollectiveChange(*key, *values)


def _count_collectives(
    graph: Graph, renamed: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return (module, kind, group) -> (number of these collectives, sum of their bytes).

    Args:
        graph: the graph.
        renamed: (path in `graph`, path in the result) of each renamed module.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for each in graph.collectives:
        path = each.module
        for old, new in renamed:
            if not old or f"{path}.".startswith(f"{old}."):
                path = ".".join(filter(None, (new, path[len(old) :].lstrip("."))))
        key = path, each.kind, each.group
        counts[key] += 1
        sizes[key] += each.nbytes
    return {key: (many, sizes[key]) for key, many in counts.items()}


def module_changes(a: Graph, b: Graph, pairs: Iterable[tuple[int, int]]) -> Iterator[ModuleChange]:
    """Yield the changed fields of modules. Modules match by their paths or by matched nodes inside.

    Args:
        a, b: the graphs.
        pairs: (id in `a`, id in `b`) of matched nodes.
    """
    rows = {row.path: row for row in a.modules}
    paths = {b.nodes[j].module: a.nodes[i].module for i, j in pairs} if rows else {}
    for row in b.modules:
        before = rows.get(paths.get(row.path, row.path))
        if before is not None:
            for what, *values in _changed_fields(before, row):
                yield ModuleChange(row.path, what, *values)


def changes(a: Node, b: Node, gradient_tolerance: float, time_tolerance: float) -> Iterator[Change]:
    """Yield the changes from node `a` to node `b`; `diff` describes the tolerances."""
    if a.outputs != b.outputs:
        yield from _outputs(a, b)
    if a.attributes != b.attributes:
        yield from _attributes(a, b)
    # Gradients are compared only if both nodes have some, because a traced graph has none.
    for before, after in zip(a.grad_outputs, b.grad_outputs, strict=False):
        if before is not None and after is not None and _differs(before, after, gradient_tolerance):
            yield Change(a.id, b.id, "gradient", *_gradients(before, after))
    if a.seconds is not None and b.seconds is not None:
        longest = max(a.seconds, b.seconds)
        if longest > _MIN_SECONDS and longest > (1 + time_tolerance) * min(a.seconds, b.seconds):
            yield Change(a.id, b.id, "time", seconds_text(a.seconds), seconds_text(b.seconds))
    for what, before_text, after_text in _changed_fields(a, b):
        yield Change(a.id, b.id, what, before_text, after_text)


def _changed_fields(a: Row, b: Row) -> Iterator[tuple[str, str, str]]:
    """Yield (title, text of a, text of b) for each compared field with different values.

    Fields that were not recorded in both `a` and `b` are skipped.
    """
    kind: Any = type(a)
    for name, column in _compared_fields(kind):
        values = getattr(a, name), getattr(b, name)
        if all(map(is_recorded, values)) and values[0] != values[1]:
            yield column.title, column.words(values[0]), column.words(values[1])


@cache
def _compared_fields(cls: type) -> tuple[tuple[str, Column], ...]:
    """Return (name, declaration) of the fields that `diff` compares for equality."""
    return tuple(each for each in columns_of(cls).items() if each[1].compared)


def _outputs(a: Node, b: Node) -> Iterator[Change]:
    """Yield changes of the shape, dtype or device of outputs."""
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
    """Yield changes of attributes that both nodes have.

    Yield nothing if output shapes differ, because attributes such as sizes then differ as well. The
    attribute "data", the name of an operand without gradient, is not compared.
    """
    if [meta and meta.shape for meta in a.outputs] != [meta and meta.shape for meta in b.outputs]:
        return
    after = dict(text.partition("=")[::2] for text in b.attributes)
    for name, value in (text.partition("=")[::2] for text in a.attributes):
        if name != "data" and after.get(name, value) != value:
            yield Change(a.id, b.id, "attribute", f"{name}={value}", f"{name}={after[name]}")


def _differs(a: GradientStats, b: GradientStats, tolerance: float) -> bool:
    if math.isinf(tolerance):
        return False
    # Statistics of a shard and of the whole gradient are not comparable.
    if a.extent != b.extent:
        return True
    if (a.nan, a.inf) != (b.nan, b.inf):
        return True
    scale = tolerance * max(a.norm, b.norm)
    return abs(a.norm - b.norm) > scale or abs(a.max_abs - b.max_abs) > scale


def _gradients(a: GradientStats, b: GradientStats) -> tuple[str, str]:
    """Return both gradients as texts, with enough digits to show the difference."""
    texts = [(_gradient(a, digits), _gradient(b, digits)) for digits in (4, 7, 10, 17)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _gradient(stats: GradientStats, digits: int) -> str:
    bad = f" with {stats.nan} NaN and {stats.inf} Inf" if stats.nonfinite else ""
    of = f" of the {stats.extent}" if stats.extent else ""
    norm, most = (_with_digits(value, digits) for value in (stats.norm, stats.max_abs))
    return f"norm {norm}, max {most}{bad}{of}"


def _with_digits(value: float, digits: int) -> str:
    return number_text(value) if digits == 4 else f"{value:.{digits}g}"
