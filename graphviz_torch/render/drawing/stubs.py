"""Define the boxes of things that are not in the autograd graph: data, and calls without a node."""

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
        """Return the lines of the title. The class of a module begins a new line in long titles."""
        parts = self.title.split(" · ") if len(self.title) > _MAX_LINE else [self.title]
        return [line for part in parts for line in labels.wrap_name(part).split("\n")]

    @property
    def lines(self) -> list[str]:
        """Return the lines of the whole text."""
        return [" ".join(entry) for entry in self.listed] or [self.title, *self.details]


End = int | Stub  # one end of a link: a drawn element's key, or a box


class Stubs(NamedTuple):
    """The boxes for data and calls, and their links in the direction of the data."""

    stubs: tuple[Stub, ...]
    links: tuple[tuple[End, End], ...]


NO_STUBS: Final = Stubs((), ())
