"""Define `Part`, a group that is still being built. Its items are nodes and other parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

# Kinds of groups:
# - "graph": one backward pass of a joined graph
# - "module": one call of a module
# - "call": one call of a function of torch or of the program
# - "run": consecutive nodes and groups, such as a step of a loop
# - "chain": consecutive views or equal operations, which the group's name lists
# - "stack": consecutive identical groups
Kind = Literal["graph", "module", "call", "run", "chain", "stack"]


class Part:
    """A group that is being built; its items are other parts and node ids."""

    __slots__ = ("items", "kind", "module_class", "name", "nodes", "parts", "span", "structure")

    def __init__(
        self, kind: Kind, name: RangeName, items: list[Item], module_class: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.module_class = module_class
        # `Structure.close` sets the following attributes.
        self.parts: list[Part] = []
        self.nodes: list[int] = []  # sorted by id
        self.span = (0, 0)  # range (start, end) of the positions of all operations inside
        self.structure = 0  # id of the part's structure, equal for isomorphic parts


class RangeName(NamedTuple):
    """A numbered name. "repeat 1" and "repeat 9" can be joined into "repeat 1-9"."""

    text: str
    stem: str
    first: int
    last: int


Item = Part | int


def split(items: list[Item]) -> tuple[list[Part], list[int]]:
    """Return (the parts among the items, in order; the nodes among them, sorted by id)."""
    parts = [item for item in items if type(item) is Part]
    return parts, sorted([item for item in items if type(item) is int])


def flatten(items: Sequence[Item]) -> list[int]:
    """Return the ids of all nodes in `items`, nested parts included, in order."""
    nodes: list[int] = []
    stack = [iter(items)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, Part):
                stack.append(iter(item.items))
                break
            nodes.append(item)
        else:
            stack.pop()
    return nodes
