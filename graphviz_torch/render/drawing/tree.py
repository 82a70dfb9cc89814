"""The tree of what is drawn: open groups around closed ones and nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

Path = tuple[int, ...]  # the framed groups around something, outermost first


class Leaf(NamedTuple):
    """A node that is drawn."""

    node: int
    module: str = ""  # the title of a module that has nothing else drawn


class Box(NamedTuple):
    """A closed group."""

    group: int
    repeats: tuple[int, ...] = ()  # groups like it that follow, and that it stands for too

    @property
    def times(self) -> int:
        """How many groups it stands for."""
        return 1 + len(self.repeats)


@dataclass(frozen=True)
class Open:
    """An open group, or the whole drawing, with what is drawn inside."""

    group: int | None
    children: tuple[Open | Box | Leaf, ...] = ()
    repeats: tuple[int, ...] = ()  # as of a Box
    framed: bool = True  # has it a frame around it

    @property
    def times(self) -> int:
        """How many groups it stands for."""
        return 1 + len(self.repeats)

    @cached_property
    def parts(self) -> list[tuple[Open | Box | Leaf, Path, int | None]]:
        """All that is in the tree: outer before inner, with its frames and the group around it."""
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

    def rebuilt(self, change: Callable[[Open], Open]) -> Open:
        """The tree with each open group changed, inner ones first."""
        made: dict[int | None, Open] = {}
        for part, _, _ in reversed(self.parts):
            if type(part) is Open:
                children = [made[c.group] if type(c) is Open else c for c in part.children]
                made[part.group] = change(replace(part, children=tuple(children)))
        return made[None]

    @cached_property
    def nodes(self) -> list[int]:
        """The nodes that are drawn, by id."""
        return sorted([part.node for part, _, _ in self.parts if type(part) is Leaf])

    @cached_property
    def boxes(self) -> list[int]:
        """The closed groups."""
        return [part.group for part, _, _ in self.parts if type(part) is Box]

    @cached_property
    def opened(self) -> set[int]:
        """The open groups that have a frame."""
        opened = [part for part, _, _ in self.parts if type(part) is Open and part.framed]
        return {part.group for part in opened if part.group is not None}

    @cached_property
    def paths(self) -> dict[int, Path]:
        """The frames around each key."""
        return {
            part.node if isinstance(part, Leaf) else ~part.group: path
            for part, path, _ in self.parts
            if not isinstance(part, Open)
        }

    @cached_property
    def homes(self) -> dict[int, int | None]:
        """The open group around each node that is drawn, framed or not."""
        return {part.node: home for part, _, home in self.parts if type(part) is Leaf}

    @cached_property
    def repeated(self) -> dict[int, tuple[int, ...]]:
        """Each group that stands for others, and those, itself first."""
        found: dict[int, tuple[int, ...]] = {}
        for part, _, _ in self.parts:
            if not isinstance(part, Leaf) and part.repeats and part.group is not None:
                found[part.group] = (part.group, *part.repeats)
        return found
