"""The values of a drawing: the tree of drawn elements, edges, data, contents, marks and colors.

The tree consists of open groups, which contain closed groups and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import takewhile
from typing import Final

from ...graph import Edge, Node, TensorMeta
from ...graph.immutable import NamedTuple, immutable
from .. import labels
from ..style import Pair

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


class MergedEdge(NamedTuple):
    """A drawn edge that represents several edges, or that begins or ends at a closed group."""

    source: int  # key of the source
    target: int  # key of the target
    edge: Edge  # the first of the represented edges
    times: int = 1  # number of distinct tensors that the represented edges pass
    outputs: tuple[TensorMeta | None, ...] = ()  # distinct shapes and dtypes of these tensors


@immutable
class InlinedNodes:
    """The nodes without a box of their own, because another node's box shows them.

    These nodes are called folded. There are three kinds: leaves, such as a weight, which its
    operation's box shows; carriers, which only pass on a leaf, such as the `t` of a weight; and
    views.
    """

    folded: frozenset[int] = frozenset()  # ids of the leaves, carriers and views without a box
    edges: tuple[Edge, ...] = ()  # edges that do not start at a folded node
    # Operation -> edges to the operation from the folded nodes inside it.
    inside: Mapping[int, list[Edge]] = field(default_factory=dict)
    # Carrier -> the folded node that the carrier reads.
    carried: Mapping[int, int] = field(default_factory=dict)
    # Folded node -> the node whose box shows the folded node. This is the folded node's first user,
    # but for a view in the same module as its source, it is the source.
    user: Mapping[int, int] = field(default_factory=dict)
    many: Mapping[int, int] = field(default_factory=dict)  # leaf with many users -> number of users
    # Edge that replaces a chain of views -> the views, in order.
    views: Mapping[Edge, tuple[int, ...]] = field(default_factory=dict)
    # Node -> the view that the node's call or module returns. The node's box shows the view's
    # shape.
    shown: Mapping[int, int] = field(default_factory=dict)

    def host(self, node: int) -> int:
        """Return the node whose box shows `node`: `node` itself, unless it is folded."""
        while node in self.folded:
            node = self.user[node]
        return node

    def leaf(self, node: int) -> int:
        """Return the leaf that a carrier (see inline.py) returns; return other nodes unchanged."""
        while node in self.carried:
            node = self.carried[node]
        return node


class FusedNode(NamedTuple):
    """A group drawn as a single operation, such as a linear layer."""

    node: int  # the node that computes the output of the group
    nodes: tuple[int, ...]  # nodes of the group in topological order, without folded nodes


class Totals(NamedTuple):
    """Sums and ranges of the values of a group's nodes."""

    elements: int  # total number of elements of the parameters
    gradients: tuple[float, float] | None  # smallest and largest gradient norm
    saved_bytes: int  # bytes saved for backward
    seconds: float | None  # time in backward


@immutable(slots=False)
class Contents:
    """The nodes that a drawn group represents.

    A group that is drawn in place of several identical groups represents its own nodes, and the
    corresponding nodes of the groups that are not drawn. So does each group inside such a group.
    """

    times: int  # number of groups that the drawn group represents, itself included
    inside: tuple[Node, ...]  # nodes of all these groups, leaves included
    own: tuple[int, ...]  # ids of the nodes of the drawn group alone
    saved_bytes: int  # bytes that all these groups save for backward

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Ids of all nodes that the group represents."""
        return tuple([node.id for node in self.inside])

    @cached_property
    def devices(self) -> list[str]:
        """Distinct devices of the nodes, in the order of the nodes."""
        # Many nodes share the same tuple of outputs, so each tuple is visited once.
        distinct = {id(node.outputs): node for node in self.inside}.values()
        return list(filter(None, dict.fromkeys([node.device for node in distinct])))

    @cached_property
    def totals(self) -> Totals:
        """Sums and ranges of the values of all nodes."""
        inside = self.inside
        parameters = [node.outputs for node in inside if node.leaf == "parameter"]
        elements = sum([math.prod(meta.shape) for made in parameters for meta in made if meta])
        norms = [stats.norm for node in inside for stats in node.grad_outputs if stats is not None]
        gradients = (min(norms), max(norms)) if norms else None
        seconds = [node.seconds for node in inside if node.seconds is not None]
        return Totals(elements, gradients, self.saved_bytes, sum(seconds) if seconds else None)


class Interest(NamedTuple):
    """The reasons to open a group: sums over the nodes inside."""

    findings: int = 0
    transfers: int = 0  # and collectives
    learning: int = 0  # parameters that learn, if most parameters of the model are frozen
    saved_bytes: int = 0  # bytes saved for backward

    @property
    def is_marked(self) -> bool:
        """True if the group contains a finding, a transfer or a collective."""
        return bool(self.findings or self.transfers)


class Badge(NamedTuple):
    """A line that a finding or a difference adds to a box."""

    text: str
    color: str  # name of the color in the palette
    strong: bool = True


@immutable
class Highlights:
    """The badges and outline colors that findings and differences add to boxes."""

    badges: Mapping[int, list[Badge]] = field(default_factory=dict)
    # Key -> name of the outline's color in the palette. The name also selects the line style.
    outlines: Mapping[int, str] = field(default_factory=dict)


@immutable
class Shading:
    """The fill color of each box for the option `color_by`, and the legend's color scale."""

    # Key -> fill color. None means no fill and a dashed outline.
    fills: Mapping[int, Pair | None] = field(default_factory=dict)
    inks: Mapping[int, Pair] = field(default_factory=dict)  # key -> color of the text on the fill
    values: Mapping[int, str] = field(default_factory=dict)  # key -> text of the value
    title: str = ""
    scale: tuple[tuple[Pair | None, str], ...] = ()  # (color, meaning) of each legend entry


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
