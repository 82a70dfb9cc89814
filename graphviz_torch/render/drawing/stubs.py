"""Values for boxes that are no part of the autograd graph: data, and calls without a node."""

from __future__ import annotations

from typing import Final, NamedTuple

from .. import labels

_MAX_LINE = 22  # maximum number of characters of a title in one line


class Stub(NamedTuple):
    """A box for data, or for a call without an autograd node."""

    position: int  # position in `Graph.untracked`
    title: str
    details: tuple[str, ...]
    is_data: bool
    frames: tuple[int, ...]  # open groups around the box, outermost first
    listed: tuple[tuple[str, str], ...] = ()  # (name, shape) of data that shares the box

    @property
    def title_lines(self) -> list[str]:
        """Return the title in lines; the class of the module begins a line if it is long."""
        parts = self.title.split(" · ") if len(self.title) > _MAX_LINE else [self.title]
        return [line for part in parts for line in labels.wrap_name(part).split("\n")]

    @property
    def lines(self) -> list[str]:
        """Return the whole text in lines."""
        return [" ".join(entry) for entry in self.listed] or [self.title, *self.details]


End = int | Stub  # one end of a link: the key of a drawn element, or a box


class Stubs(NamedTuple):
    """The boxes for data and calls, and their links in the direction of the data."""

    stubs: tuple[Stub, ...]
    links: tuple[tuple[End, End], ...]


NO_STUBS: Final = Stubs((), ())
