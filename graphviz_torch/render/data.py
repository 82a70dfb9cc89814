"""Where data enters a drawing: what a model was called with, and needs no gradient.

Autograd has no node for it. Where an operation kept it for backward, a recording tells.
"""

from __future__ import annotations

from typing import Final

from ..graph import Node
from . import labels
from .drawing.drawing import Drawing

_MOST: Final = 8  # places: where a loop reads its data in every step, the first tell it


def entries(drawing: Drawing) -> dict[int, list[str]]:
    """What enters each key, in words."""
    nodes = drawing.graph.nodes
    readers = [n for n in nodes if n.saved and any(saved.kind == "input" for saved in n.saved)]
    ids = {node.id for node in readers}
    known: dict[int, set[object]] = {i: set() for i in ids}  # what it reads from nodes
    for edge in drawing.graph.edges if ids else ():
        if edge.target in ids:
            known[edge.target].update(nodes[edge.source].outputs)
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    found: dict[int, list[str]] = {}
    for node in readers:
        key = drawing.key(node.id)
        if key not in drawn or (key not in found and len(found) == _MOST):
            continue
        for text in _read(node, known[node.id]):
            if text not in found.setdefault(key, []):
                found[key].append(text)
    return {key: texts for key, texts in found.items() if texts}


def _read(node: Node, known: set[object]) -> list[str]:
    return [
        f"{'target' if saved.name == 'target' else 'data'} {labels.shape(saved.tensor)}"
        for saved in node.saved
        if saved.kind == "input" and saved.tensor not in known
    ]
