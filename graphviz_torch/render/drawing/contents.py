"""What is inside a closed group, in figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...graph import Graph
from .visible import Visible


@dataclass(frozen=True, slots=True)
class Contents:
    """Figures of all nodes in a group, leaves included.

    Of a group that stands for others like it, or is in one that does, they are its own figures; the
    gradients alone are those of all.
    """

    nodes: tuple[int, ...]  # ids
    parameters: int  # number of parameters
    elements: int  # in all of them
    devices: tuple[str, ...]
    repeats: tuple[int, ...] = ()  # ids of the nodes in the groups that it stands for
    gradients: tuple[float, float] | None = None  # smallest and largest finite norm, of all
    saved_bytes: int = 0
    seconds: float | None = None  # in backward


def contents(graph: Graph, drawn: Visible) -> dict[int, Contents]:
    """The figures of each closed group that is drawn."""
    if drawn.groups is None:
        return {}
    repeats = _repeats(drawn)
    return {number: _figures(graph, drawn, number, repeats[number]) for number in drawn.boxes}


def _repeats(drawn: Visible) -> dict[int, list[int]]:
    """By closed group, the groups that are not drawn and that it stands for."""
    assert drawn.groups is not None
    assert drawn.keys is not None
    tree, keys = drawn.groups, drawn.keys
    first: dict[int, int] = {}  # group that is hidden -> its like in the first of the family
    for number in dict.fromkeys(keys.hidden.values()):
        first.update(zip(tree.below(number), tree.below(keys.family[number]), strict=True))
    found: dict[int, list[int]] = {number: [] for number in drawn.boxes}
    for number in first:
        like = number
        while like in first:
            like = first[like]
        if like in keys.box:
            found[keys.box[like]].append(number)
    return found


def _figures(graph: Graph, drawn: Visible, number: int, repeats: list[int]) -> Contents:
    assert drawn.groups is not None
    tree = drawn.groups
    ids = sorted([i for inner in tree.below(number) for i in tree.groups[inner].nodes])
    others = sorted([i for inner in repeats for i in tree.groups[inner].nodes])
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
