"""Keep modules that run side by side, such as the replicas of a model, in execution order.

Graphviz chooses an order with few crossing edges. Often, several orders are equally good, and
Graphviz ignores edges between two clusters of one rank. Therefore a row of invisible points is
added in the rank above, each with an invisible edge to a module. Only if the modules have the order
of the points, no two of these edges cross.
"""

from __future__ import annotations

from itertools import pairwise

from ..drawing.drawing import Drawing
from ..drawing.shorten import ranks_with_cycles
from ..drawing.tree import Leaf, Open
from .markup import dot_id

_MAX_SIBLINGS = 8  # the order of more modules is left to Graphviz
_INVISIBLE = "[style=invis]"


def sibling_lines(drawing: Drawing) -> list[str]:
    """Return the invisible points and edges above modules of one class that run side by side.

    These lines must be written first, because Graphviz starts from the order in the text.
    """
    rows = _rows(drawing)
    if not rows:
        return []
    rank = ranks_with_cycles(drawing)
    # A module that reads a detached result is below the module of the result.
    cut = {drawing.key(node) for each in drawing.graph.cuts for node in each.after}
    lines = []
    for row in rows:
        firsts = [keys[0] for keys in row]
        spans = {(rank[keys[0]], max(rank[key] for key in keys)) for keys in row}
        if len(spans) > 1 or not cut.isdisjoint(firsts):
            continue
        points = [f"above_{dot_id(key)}" for key in firsts]
        form = 'shape=point width=0.01 label="" style=invis'
        lines.append(f"\t{{rank=same {' '.join(f'{point} [{form}]' for point in points)}}}")
        lines += [f"\t{one} -> {other} {_INVISIBLE}" for one, other in pairwise(points)]
        below = zip(points, firsts, strict=True)
        lines += [f"\t{point} -> {dot_id(key)} {_INVISIBLE}" for point, key in below]
    return lines


def _rows(drawing: Drawing) -> list[list[list[int]]]:
    """Return, for modules of the same class and size, the keys inside each, in execution order."""
    if drawing.groups is None:
        return []
    groups = drawing.groups.groups
    inside: dict[int, list[int]] = {}  # framed group -> keys of the elements inside
    for key, path in drawing.tree.paths.items():
        for number in path:
            inside.setdefault(number, []).append(key)
    rows: dict[tuple[int | None, str, int], list[list[int]]] = {}
    for part, _, home in drawing.tree.parts:
        if isinstance(part, Leaf) or part.group is None or groups[part.group].kind != "module":
            continue
        keys = inside.get(part.group, []) if isinstance(part, Open) else [~part.group]
        if keys:
            one = groups[part.group]  # not `like`, because replicas are on different devices
            shared = home, one.module_class, one.span[1] - one.span[0]
            rows.setdefault(shared, []).append(sorted(keys, key=drawing.place))
    found = [sorted(row, key=lambda keys: drawing.place(keys[0])) for row in rows.values()]
    return [row for row in found if 1 < len(row) <= _MAX_SIBLINGS]
