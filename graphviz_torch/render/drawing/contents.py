"""What is inside a closed group, in figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...graph import Graph
from ..groups.groups import Groups


@dataclass(frozen=True, slots=True)
class Contents:
    """Figures of all nodes in a group, leaves included."""

    nodes: tuple[int, ...]  # ids
    parameters: int  # number of parameters
    elements: int  # in all of them
    devices: tuple[str, ...]
    gradients: tuple[float, float] | None = None  # smallest and largest finite norm
    saved_bytes: int = 0
    seconds: float | None = None  # in backward


def contents(graph: Graph, tree: Groups, number: int) -> Contents:
    """The figures of group `number`."""
    ids = sorted([i for inner in tree.below(number) for i in tree.groups[inner].nodes])
    nodes = [graph.nodes[i] for i in ids]
    parameters = [node for node in nodes if node.leaf == "parameter"]
    metas = [meta for node in parameters for meta in node.outputs if meta is not None]
    norms = [g.norm for node in nodes for g in node.grad_outputs if g is not None]
    seconds = [node.seconds for node in nodes if node.seconds is not None]
    return Contents(
        nodes=tuple(ids),
        parameters=len(parameters),
        elements=sum(math.prod(meta.shape) for meta in metas),
        gradients=(min(norms), max(norms)) if norms else None,
        saved_bytes=sum(node.saved_bytes for node in nodes),
        seconds=sum(seconds) if seconds else None,
        devices=tuple(dict.fromkeys(node.device for node in nodes if node.device)),
    )
