"""The step that counts what is inside a closed group, and in all blocks that one is drawn for."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .drawing import Contents, Drawing


def count_contents(drawing: Drawing) -> Drawing:
    """The drawing with the figures of closed groups, and of all blocks that one is drawn for."""
    if drawing.groups is None:
        return drawing
    drawn = drawing.tree.opened.union(drawing.boxes)
    folds = [number for number in drawing.tree.repeated if number in drawn]
    counted = [*drawing.boxes, *folds]
    if not counted:
        return drawing
    stands_for = _stands_for(drawing, counted)
    return drawing.having(
        contents={number: _figures(drawing, number, stands_for[number]) for number in counted}
    )


def _stands_for(drawing: Drawing, counted: Iterable[int]) -> dict[int, list[int]]:
    """By group that is drawn, itself and all groups that are not drawn and that it stands for."""
    assert drawing.groups is not None
    assert drawing.keys is not None
    tree, keys = drawing.groups, drawing.keys
    first: dict[int, int] = {}  # group that is hidden -> its like in the first of the family
    for number in dict.fromkeys(keys.hidden.values()):
        first.update(zip(tree.below(number), tree.below(keys.family[number]), strict=True))
    found = {number: [number] for number in counted}
    for number in first:
        like = number
        while like in first:
            like = first[like]
        if like in found:
            found[like].append(number)
    return found


def _ids(drawing: Drawing, groups: Iterable[int]) -> list[int]:
    """All nodes in these groups."""
    assert drawing.groups is not None
    tree = drawing.groups
    return sorted([i for n in groups for inner in tree.below(n) for i in tree.groups[inner].nodes])


def _figures(drawing: Drawing, number: int, stands_for: list[int]) -> Contents:
    ids = _ids(drawing, stands_for)
    nodes = [drawing.graph.nodes[i] for i in ids]
    parameters = [node for node in nodes if node.leaf == "parameter"]
    metas = [meta for node in parameters for meta in node.outputs if meta is not None]
    norms = [g.norm for node in nodes for g in node.grad_outputs if g is not None]
    seconds = [node.seconds for node in nodes if node.seconds is not None]
    return Contents(
        times=len(stands_for),
        nodes=tuple(ids),
        own=tuple(_ids(drawing, [number])) if len(stands_for) > 1 else tuple(ids),
        parameters=len(parameters),
        elements=sum(math.prod(meta.shape) for meta in metas),
        gradients=(min(norms), max(norms)) if norms else None,
        saved_bytes=sum([saved.nbytes for node in nodes for saved in node.saved]),
        seconds=sum(seconds) if seconds else None,
        devices=tuple(filter(None, dict.fromkeys([node.device for node in nodes]))),
    )
