"""What a drawing shows of a graph: frozen values, filled in by the steps of steps.py.

A drawing is a tree of `Open | Box | Leaf`, the edges between them, and what is said of each. A
thing that is drawn has a key: the id of a node, or `~id` of a closed group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from ...graph import Collective, Edge, Finding, Graph, Node, TensorMeta
from .. import labels
from ..groups.chains import GRADIENT
from ..groups.groups import Group, Groups, ModuleTree
from ..groups.keys import Keys
from ..options import Settings, complete
from ..style import Pair
from .tree import Leaf, Open

Fold = bool | Literal["loops"]
_MOST_NAMES = 3  # of what is in the body of a loop, in its title


class Line(NamedTuple):
    """What is drawn for edges that end at a closed group, or that are several."""

    source: int  # key
    target: int  # key
    edge: Edge  # the first of the edges it stands for
    times: int = 1  # how many tensors pass
    outputs: tuple[TensorMeta | None, ...] = ()  # of several: the shapes and dtypes that pass


@dataclass(frozen=True, slots=True)
class Inner:
    """What is written inside nodes, and where."""

    folded: frozenset[int] = frozenset()  # leaves and carriers that have no node of their own
    edges: tuple[Edge, ...] = ()  # all others
    inside: Mapping[int, list[Edge]] = field(
        default_factory=dict
    )  # user -> edges from folded nodes
    carried: Mapping[int, int] = field(
        default_factory=dict
    )  # carrier -> the folded node it hands on
    # Folded node -> its first user; of a view in the module of what it shows, that.
    user: Mapping[int, int] = field(default_factory=dict)
    many: Mapping[int, int] = field(default_factory=dict)  # leaf -> number of its users, where many
    # Of an edge that leads around views these, in order.
    views: Mapping[Edge, tuple[int, ...]] = field(default_factory=dict)
    # Node -> the view whose tensor it shows, which is that of its call or module.
    shown: Mapping[int, int] = field(default_factory=dict)

    def host(self, node: int) -> int:
        """The node for which a folded node is drawn; any other node itself."""
        while node in self.folded:
            node = self.user[node]
        return node

    def leaf(self, node: int) -> int:
        """The leaf that a folded node hands on; a leaf itself."""
        while node in self.carried:
            node = self.carried[node]
        return node


class Unit(NamedTuple):
    """A group that is drawn as one operation."""

    node: int  # that makes its one output
    nodes: tuple[int, ...]  # all of it that is not written inside others, in topological order


class Figures(NamedTuple):
    """What some nodes have together."""

    elements: int  # in all parameters
    gradients: tuple[float, float] | None  # the smallest and largest finite norm
    saved_bytes: int  # kept for backward
    seconds: float | None  # in backward


@dataclass(frozen=True)
class Contents:
    """All nodes in a group, leaves included, and their figures, which are counted once asked for.

    Where a group stands for others like it, or lies in one that does, the figures are those of all
    of them together.
    """

    times: int  # how many groups it stands for
    inside: tuple[Node, ...]  # in all of them
    own: tuple[int, ...]  # ids of the nodes in the one that is drawn
    saved_bytes: int  # that all of them keep for backward

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The ids of the nodes."""
        return tuple([node.id for node in self.inside])

    @cached_property
    def devices(self) -> list[str]:
        """Those of the nodes that have one, in order."""
        distinct = {id(node.outputs): node for node in self.inside}.values()  # most share theirs
        return list(filter(None, dict.fromkeys([node.device for node in distinct])))

    @cached_property
    def figures(self) -> Figures:
        """What the nodes have together."""
        inside = self.inside
        parameters = [node.outputs for node in inside if node.leaf == "parameter"]
        elements = sum([math.prod(meta.shape) for made in parameters for meta in made if meta])
        norms = [stats.norm for node in inside for stats in node.grad_outputs if stats is not None]
        gradients = (min(norms), max(norms)) if norms else None
        seconds = [node.seconds for node in inside if node.seconds is not None]
        return Figures(elements, gradients, self.saved_bytes, sum(seconds) if seconds else None)


class Sign(NamedTuple):
    """A line that a finding or a difference adds to what is drawn."""

    text: str
    color: str  # its name in the palette
    strong: bool = True


@dataclass(frozen=True, slots=True)
class Marks:
    """What findings and differences add, by key."""

    signs: Mapping[int, list[Sign]] = field(default_factory=dict)
    outlines: Mapping[int, str] = field(
        default_factory=dict
    )  # colour by name; "removed" is dashed, too


@dataclass(frozen=True, slots=True)
class Shading:
    """The fills that `color_by` gives, by key, and what they mean."""

    fills: Mapping[int, Pair | None] = field(
        default_factory=dict
    )  # None: a dashed outline in place of a fill
    inks: Mapping[int, Pair] = field(
        default_factory=dict
    )  # colour of the text, where not the usual
    values: Mapping[int, str] = field(default_factory=dict)  # the value in words
    title: str = ""
    scale: tuple[tuple[Pair | None, str], ...] = ()  # fill, what it means


@dataclass(frozen=True)
class Drawing:
    """A graph, and what the steps taken so far say of how it is drawn."""

    graph: Graph
    options: Settings
    findings: tuple[Finding, ...] = ()
    inner: Inner = field(default_factory=Inner)
    fold: Fold = False  # are blocks that are alike drawn once, or the steps of a loop
    size: int | None = None  # things directly in a group, at most; None: there are no groups
    rows: int | None = None  # modules in a row, at most
    limit: int | None = None  # things that are drawn, at most; None: as many as fit a page
    whole: bool = False  # is every group to be open
    fits: bool = True  # has the page room for what is open
    stacks: bool = False  # are the graphs that it was joined from drawn below each other
    modules: ModuleTree | None = None  # which each level that is tried cuts into its groups
    # All nodes in groups. It is flat, not `Open` with 100,000 leaves: it is searched for what is
    # alike and opened in ten ways, and a tree of objects takes longer than all the rest.
    groups: Groups | None = None
    called: Mapping[int, str] = field(default_factory=dict)  # group -> its name, by its data
    # Of a group: findings that name its nodes, copies between devices, bytes kept for backward.
    worth: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    units: Mapping[int, Unit] = field(default_factory=dict)  # by group
    start: int | None = None  # the group that is drawn; None: all
    # What is directly inside a group, None for the top: groups alike that follow each other as one.
    families: Mapping[int | None, list[tuple[int, ...]]] = field(default_factory=dict)
    tree: Open = field(default_factory=lambda: Open(None))
    keys: Keys | None = None  # None: every node is drawn, or written inside one that is
    edges: tuple[Edge, ...] = ()  # between nodes that are drawn as themselves
    lines: tuple[Line, ...] = ()
    linked: Mapping[int, str] = field(
        default_factory=dict
    )  # group drawn for several -> how these are linked
    handed: Mapping[int, str] = field(default_factory=dict)  # key -> what a step hands the next one
    before: Mapping[int, list[int]] = field(
        default_factory=dict
    )  # key -> keys or ids named above it
    behind: Mapping[int, list[int]] = field(
        default_factory=dict
    )  # key -> keys or ids named below it
    # By group that is drawn closed, or open for others like it.
    contents: Mapping[int, Contents] = field(default_factory=dict)
    # What ranks sent to each other, by the key of what says so; an open group has one, too. None:
    # what nothing has that is drawn.
    sent: Mapping[int | None, list[Collective]] = field(default_factory=dict)
    marks: Marks = Marks()
    shading: Shading = Shading()

    def having(self, **changes: Any) -> Drawing:
        """The drawing with some fields changed.

        As `dataclasses.replace`, which takes ten times as long: half the time of a small picture.
        """
        fields = self.__dict__.copy()
        fields.update(changes)
        fields.pop("ends", None)  # what follows from the fields
        fields.pop("alone", None)
        fields.pop("made", None)
        fields.pop("closed", None)
        made = object.__new__(Drawing)
        object.__setattr__(made, "__dict__", fields)  # it is frozen
        return made

    @property
    def nodes(self) -> list[int]:
        """The nodes that are drawn, by id."""
        return self.tree.nodes

    @property
    def boxes(self) -> list[int]:
        """The closed groups that are drawn."""
        return self.tree.boxes

    @property
    def all_lines(self) -> Iterator[Line]:
        """Everything that is drawn between two keys."""
        yield from (Line(edge.source, edge.target, edge) for edge in self.edges)
        yield from self.lines

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Source and target of each drawn edge, as keys: `edges`, then `lines`."""
        ends = [(edge.source, edge.target) for edge in self.edges]
        return ends + [(line.source, line.target) for line in self.lines]

    @cached_property
    def shows_devices(self) -> bool:
        """Do boxes say the device: where they differ, and in full."""
        if self.options["detail"] == "full":
            return True
        return len({node.device for node in self.graph.nodes} - {""}) > 1

    @property
    def draws_each(self) -> bool:
        """Has each operation a node of its own, and none stands for a call or a module?"""
        options = self.options
        each = options["detail"] == "full" or options["parameters"] == "nodes"
        return each or options["fold"] is False

    @cached_property
    def has_modules(self) -> bool:
        """Were modules recorded?"""
        return any(node.module or node.module_class for node in self.graph.nodes)

    @cached_property
    def made(self) -> dict[int, dict[TensorMeta, None]]:
        """The distinct tensors that leave each closed group, by key."""
        found: dict[int, dict[TensorMeta, None]] = {}
        nodes = self.graph.nodes
        for line in self.lines:
            if line.source < 0:
                metas = line.outputs or (self.leaving(line.edge),)
                known = found.setdefault(line.source, {})
                known.update({meta: None for meta in metas if meta is not None})
        for node, nr in self.graph.outputs:
            key = self.key(node)
            if key < 0:
                metas = nodes[node].outputs[nr : nr + 1]
                found.setdefault(key, {}).update({m: None for m in metas if m is not None})
        return found

    def leaving(self, edge: Edge) -> TensorMeta | None:
        """The tensor of an edge as it leaves the closed group of its source, views in it made."""
        source, nr = edge.source, edge.output_nr
        key = self.itself(source)
        for view in self.inner.views.get(edge, ()):
            if self.keys is None or key is None or key >= 0 or self.keys.of(view) != key:
                break
            source, nr = view, 0
        return (*self.graph.nodes[source].outputs[nr : nr + 1], None)[0]

    @cached_property
    def alone(self) -> dict[int, str]:
        """The nodes that are all that is drawn of a module, and its title."""
        return {p.node: p.module for p, _, _ in self.tree.parts if type(p) is Leaf and p.module}

    def key(self, node: int) -> int:
        """The key under which a node is drawn: its own, or that of what stands for it.

        That is the operation in which it is written, the closed group around it, or its like in a
        block that is drawn for several.
        """
        host = self.inner.host(node)
        if self.keys is None:
            return host
        key = self.keys.of(host)
        return self.keys.users.get(host, host) if key is None else key

    def alike(self, node: int, *, loops: bool = True) -> list[int]:
        """The nodes that one is drawn for, in each step of a loop; itself where there is none.

        Args:
            loops: False for those in each block with parameters of its own, too.
        """
        if self.keys is None or not self.tree.repeated:
            return [node]
        return self.keys.alike(node, loops=loops)

    def itself(self, node: int) -> int | None:
        """The key of a node that is drawn, or the closed group around it.

        None for a node that is written inside another, drawn as its like, or not at all.
        """
        if node in self.inner.folded:
            return None
        key: int | None = node
        if self.keys is not None:
            key = self.keys.of(node)
        return key if key is None or key == node or key < 0 else None

    def unit(self, key: int) -> Unit | None:
        """What is drawn as one operation under a key; None for a node, and any other group."""
        return None if key >= 0 or ~key in self.tree.repeated else self.units.get(~key)

    @cached_property
    def outputs(self) -> dict[int, int]:
        """The outputs of the graph, each by the node that is drawn for it: mostly itself.

        The last step of a loop makes the loss that each step adds to; the first one may be drawn.
        """
        found = {node: node for node, _ in self.graph.outputs}
        return found | {key: node for node in found if (key := self.key(node)) >= 0}

    @cached_property
    def closed(self) -> list[int]:
        """The closed groups whose inside a reader does not see."""
        return [number for number in self.boxes if self.unit(~number) is None]

    def place(self, key: int) -> int:
        """Where a key stands in the topological order."""
        tree = self.groups
        if tree is None:
            return key
        if key >= 0:
            return tree.places[key]
        part = tree.groups[~key]
        while not part.nodes:
            part = tree.groups[part.children[0]]
        return tree.places[part.nodes[-1]]

    def title(self, number: int) -> str:
        """What to call a group: with the one around it where its own name is only a number."""
        assert self.groups is not None
        groups = self.groups.groups
        part = groups[number]
        alike = self.tree.repeated.get(number)
        name = part.name if alike else self.called.get(number, part.name)
        if part.kind == "call":
            name = name.partition("#")[0]
        outer = part.parent
        while outer is not None and groups[outer].kind != "module":
            outer = groups[outer].parent
        if outer is not None and (name[:1].isdigit() or outer not in self.tree.opened):
            name = f"{groups[outer].name.partition('#')[0]}.{name}"
        if alike:
            first, last = groups[min(alike)], groups[max(alike)]
            loop = part.kind == "run" and name.startswith("repeat ")
            name = self._body(first, last) if loop else f"{name} … {labels.ending(name, last.name)}"
            name += f"  {labels.TIMES}{len(alike)}{self.linked.get(number, '')}"
        return name

    def _body(self, first: Group, last: Group) -> str:
        """What a loop computes: the modules of its first step to those of its last, or else its
        operations.
        """
        if row := _row(self._inside(first), self._inside(last)):
            return row
        names = [
            one if one == end else f"{one} … {end.rpartition('.')[2]}"
            for one, end in zip(self._inside(first), self._inside(last), strict=True)
        ]
        if not names:
            names = [self.graph.nodes[i].title for i in last.nodes if i not in self.inner.folded]
        distinct = list(dict.fromkeys(names))
        more = ", …" if len(distinct) > _MOST_NAMES else ""
        return ", ".join(distinct[:_MOST_NAMES]) + more

    def _inside(self, part: Group) -> list[str]:
        """The names of the modules in the body of a loop, those of loops in it included."""
        assert self.groups is not None
        found: list[str] = []
        for inner in [self.groups.groups[number] for number in part.children]:
            if inner.kind == "run":
                found += self._inside(inner)
            elif inner.kind == "module" or inner.name.startswith(GRADIENT):
                found.append(inner.name.partition("#")[0].partition(",")[0])
        return found

    def described(self, number: int) -> str:
        """The title of a group with the class of its module, where that was recorded."""
        assert self.groups is not None
        return labels.classed(self.title(number), self.groups.groups[number].module_class)


def _row(beginnings: list[str], endings: list[str]) -> str:
    """Return the common name of modules of one list: "h.0 … 5" for "h.0.norm" to "h.5.mlp"."""
    lists = {name.partition(".")[0] for name in (*beginnings, *endings)}
    numbers = [name.split(".")[1:2] for name in (*beginnings[:1], *endings[-1:])]
    counted = all(part and part[0].isdecimal() for part in numbers)
    if len(lists) != 1 or len(beginnings) < 2 or not counted:
        return ""
    return f"{lists.pop()}.{numbers[0][0]} … {numbers[1][0]}"


# A drawing begins as this one: to fill in 25 fields takes longer than most of its steps.
NOTHING: Final = Drawing(Graph(()), complete({}))
