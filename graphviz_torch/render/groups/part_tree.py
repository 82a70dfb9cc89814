"""The tree of groups under construction: nested parts, down to the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

# "graph": a segment of a joined graph; "module": one call of a module; "call": one call of a torch
# function or of a function of the program; "run": consecutive nodes and groups; "chain": repeated
# operations, or views, that the name lists; "stack": consecutive identical groups.
Kind = Literal["graph", "module", "call", "run", "chain", "stack"]


class Part:
    """A group under construction; its items are parts and node ids."""

    __slots__ = ("items", "kind", "module_class", "name", "nodes", "parts", "span", "structure")

    def __init__(
        self, kind: Kind, name: RangeName, items: list[Item], module_class: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.module_class = module_class
        # Set by `Structure.close`:
        self.parts: list[Part] = []
        self.nodes: list[int] = []  # sorted by id
        self.span = (0, 0)  # range (start, end) of positions of its operations
        self.structure = 0  # id that isomorphic parts share


class RangeName(NamedTuple):
    """A name that can be joined with a later one: "repeat 1" and "repeat 9" to "repeat 1-9"."""

    text: str
    stem: str
    first: int
    last: int


Item = Part | int


def split(items: list[Item]) -> tuple[list[Part], list[int]]:
    """Return the parts in order, and the nodes sorted by id."""
    parts = [item for item in items if type(item) is Part]
    return parts, sorted([item for item in items if type(item) is int])


def flatten(items: Sequence[Item]) -> list[int]:
    """Return the nodes in items and in all parts inside, in order."""
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
