"""The tree of groups while it grows: parts in parts, down to the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

# A graph is a part of one that was joined from several; a run is what follows each other; a chain
# is operations in a row that its name tells: one, or two in turn, again and again, or views. A
# stack holds groups that are alike and follow each other. A call is of a function of torch's that
# made several nodes, or of the program's own.
Kind = Literal["graph", "module", "call", "run", "chain", "stack"]


class Part:
    """A group while the tree grows. Its items are parts, and nodes as their ids."""

    __slots__ = ("items", "kind", "module_class", "name", "nodes", "parts", "span", "structure")

    def __init__(self, kind: Kind, name: Name, items: list[Item], module_class: str = "") -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.module_class = module_class
        # Known once it is closed:
        self.parts: list[Part] = []
        self.nodes: list[int] = []  # by id
        self.span = (0, 0)  # positions of its operations
        self.structure = 0  # the same number for the same structure


class Name(NamedTuple):
    """A name that can be joined with that of a later group: "repeat 1" with "repeat 9"."""

    text: str
    stem: str
    first: int
    last: int


Item = Part | int


def split(items: list[Item]) -> tuple[list[Part], list[int]]:
    """The parts in their order, and the nodes by id."""
    parts = [item for item in items if type(item) is Part]
    return parts, sorted([item for item in items if type(item) is int])


def flatten(items: Sequence[Item]) -> list[int]:
    """The nodes in items and in all parts below, in order."""
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
