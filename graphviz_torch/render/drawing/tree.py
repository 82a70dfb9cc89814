"""Define the tree of drawn elements: open groups, which contain closed groups and nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from ...graph.immutable import immutable

Path = tuple[int, ...]  # ids of the framed groups that contain an element, outermost first


def common_path(paths: Sequence[Path]) -> Path:
    """Return the groups that all paths begin with, outermost first.

    >>> common_path([(0, 2, 5), (0, 2), (0, 2, 7)])
    (0, 2)
    """
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in levels)


class Leaf(NamedTuple):
    """A node with a box."""

    node: int
    module: str = ""  # title of the node's module, if no other node of the module is drawn


class Box(NamedTuple):
    """A closed group, drawn as one box."""

    group: int
    # ids of the later identical groups, in whose place this box is drawn as well
    repeats: tuple[int, ...] = ()

    @property
    def times(self) -> int:
        """Number of groups that this box represents, itself included."""
        return 1 + len(self.repeats)


@immutable(slots=False)
class Open:
    """An open group (`group=None`: the whole drawing) and its drawn children."""

    group: int | None
    children: tuple[Open | Box | Leaf, ...] = ()
    # ids of the later identical groups, in whose place this group is drawn as well
    repeats: tuple[int, ...] = ()
    framed: bool = True

    @property
    def times(self) -> int:
        """Number of groups that this group represents, itself included."""
        return 1 + len(self.repeats)

    @cached_property
    def parts(self) -> list[tuple[Open | Box | Leaf, Path, int | None]]:
        """(element, frames around it, open group that contains it) of all elements, outer first."""
        found: list[tuple[Open | Box | Leaf, Path, int | None]] = []
        stack: list[tuple[Open | Box | Leaf, Path, int | None]] = [(self, (), None)]
        while stack:
            entry = stack.pop()
            found.append(entry)
            part, path, _ = entry
            if type(part) is Open:
                number = part.group
                inner = (*path, number) if part.framed and number is not None else path
                stack += [(child, inner, number) for child in reversed(part.children)]
        return found

    def transform(self, change: Callable[[Open], Open]) -> Open:
        """Apply `change` to each open group, inner groups first, and return the new tree."""
        made: dict[int | None, Open] = {}
        for part, _, _ in reversed(self.parts):
            if type(part) is Open:
                children = [made[c.group] if type(c) is Open else c for c in part.children]
                made[part.group] = change(replace(part, children=tuple(children)))
        return made[None]

    @cached_property
    def nodes(self) -> list[int]:
        """Sorted ids of the nodes that have a box."""
        return sorted([part.node for part, _, _ in self.parts if type(part) is Leaf])

    @cached_property
    def boxes(self) -> list[int]:
        """Ids of the closed groups."""
        return [part.group for part, _, _ in self.parts if type(part) is Box]

    @cached_property
    def framed_groups(self) -> set[int]:
        """Ids of the open groups that have a frame."""
        opened = [part for part, _, _ in self.parts if type(part) is Open and part.framed]
        return {part.group for part in opened if part.group is not None}

    @cached_property
    def paths(self) -> dict[int, Path]:
        """Key of a node or closed group -> ids of the framed groups around it, outermost first."""
        return {
            part.node if isinstance(part, Leaf) else ~part.group: path
            for part, path, _ in self.parts
            if not isinstance(part, Open)
        }

    @cached_property
    def homes(self) -> dict[int, int | None]:
        """Id of a node -> the innermost open group that contains the node, framed or not."""
        return {part.node: home for part, _, home in self.parts if type(part) is Leaf}

    @cached_property
    def represented_groups(self) -> dict[int, tuple[int, ...]]:
        """Group drawn in place of several identical groups -> ids of all of them, its own first."""
        found: dict[int, tuple[int, ...]] = {}
        for part, _, _ in self.parts:
            if not isinstance(part, Leaf) and part.repeats and part.group is not None:
                found[part.group] = (part.group, *part.repeats)
        return found
