"""The step that counts what is inside a closed group, and in all blocks that one is drawn for."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .drawing import Contents, Drawing


def count_contents(drawing: Drawing) -> Drawing:
    """The drawing with the figures of closed groups, and of all blocks that one is drawn for."""
    if drawing.groups is None:
        return drawing
    alike = drawing.tree.repeated
    drawn = drawing.tree.opened.union(drawing.boxes)
    folds = {number: members for number, members in alike.items() if number in drawn}
    if not drawing.boxes and not folds:
        return drawing
    repeats = _repeats(drawing)
    return drawing.having(
        contents={
            number: _figures(drawing, _ids(drawing, [number]), _directly(drawing, repeats[number]))
            for number in drawing.boxes
        },
        totals={
            number: _figures(drawing, _ids(drawing, members), [])
            for number, members in folds.items()
        },
    )


def _repeats(drawing: Drawing) -> dict[int, list[int]]:
    """By closed group, the groups that are not drawn and that it stands for."""
    assert drawing.groups is not None
    assert drawing.keys is not None
    tree, keys = drawing.groups, drawing.keys
    first: dict[int, int] = {}  # group that is hidden -> its like in the first of the family
    for number in dict.fromkeys(keys.hidden.values()):
        first.update(zip(tree.below(number), tree.below(keys.family[number]), strict=True))
    found: dict[int, list[int]] = {number: [] for number in drawing.boxes}
    for number in first:
        like = number
        while like in first:
            like = first[like]
        if like in keys.box:
            found[keys.box[like]].append(number)
    return found


def _ids(drawing: Drawing, groups: Iterable[int]) -> list[int]:
    """All nodes in these groups."""
    assert drawing.groups is not None
    return _directly(drawing, [n for number in groups for n in drawing.groups.below(number)])


def _directly(drawing: Drawing, groups: Iterable[int]) -> list[int]:
    assert drawing.groups is not None
    tree = drawing.groups.groups
    return sorted([i for number in groups for i in tree[number].nodes])


def _figures(drawing: Drawing, ids: list[int], others: list[int]) -> Contents:
    graph = drawing.graph
    nodes = [graph.nodes[i] for i in ids]
    parameters = [node for node in nodes if node.leaf == "parameter"]
    metas = [meta for node in parameters for meta in node.outputs if meta is not None]
    gradients = [graph.nodes[i].grad_outputs for i in (*ids, *others)]
    norms = [g.norm for stats in gradients for g in stats if g is not None]
    seconds = [node.seconds for node in nodes if node.seconds is not None]
    return Contents(
        nodes=tuple(ids),
        repeats=tuple(others),
        parameters=len(parameters),
        elements=sum(math.prod(meta.shape) for meta in metas),
        gradients=(min(norms), max(norms)) if norms else None,
        saved_bytes=sum(node.saved_bytes for node in nodes),
        seconds=sum(seconds) if seconds else None,
        devices=tuple(dict.fromkeys(node.device for node in nodes if node.device)),
    )
