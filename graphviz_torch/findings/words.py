"""Phrases that the messages of several rules use, such as " at train.py:12"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ..graph import Node, Parameter
from ..graph.events import Event
from ..graph.text import listing, shorten_middle

Key = TypeVar("Key")
Item = TypeVar("Item")


def group_by_key(pairs: Iterable[tuple[Key, Item]]) -> Iterable[tuple[Key, list[Item]]]:
    """Group items by key, in the order in which the keys first occur."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups.items()


def names_of(parameters: Iterable[Parameter]) -> str:
    """Return the names of parameters as an enumeration: "a, b and c"."""
    return listing(shorten_middle(parameter.name) for parameter in parameters)


def nodes_of(parameters: Iterable[Parameter]) -> tuple[int, ...]:
    """Return the node ids of parameters, without parameters that are not in the graph."""
    return tuple(p.node for p in parameters if p.node is not None)


def at(where: str) -> str:
    """Return " at train.py:12", or "" if the line is not known."""
    return f" at {where}" if where else ""


def operation_text(node: Node) -> str:
    """Return a node's operation and module, such as "addmm in fc1", whatever its result's label."""
    return f"{node.title} in {node.module}" if node.module else node.title


def times(event: Event) -> str:
    """Return ", 3 times", or "" for an event that happened once."""
    return f", {event.times} times" if event.times > 1 else ""


def in_code(device: str) -> str:
    """Return a device's name as a program writes it, such as "cuda:0" for a simulated CUDA device.

    >>> in_code("sim cuda:0"), in_code("sim:0"), in_code("cuda:1")
    ('cuda:0', 'sim:0', 'cuda:1')
    """
    return device.removeprefix("sim ")
