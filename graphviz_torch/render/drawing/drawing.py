"""`Drawing`: the nodes, groups and edges that a picture shows, in any output format.

A drawing is an immutable tree of drawn elements, with edges, texts and colors for each. An element
is an open group (`Open`, whose children are drawn), a closed group (`Box`, drawn as one box) or a
node (`Leaf`). The functions in steps.py fill in the fields of a drawing one after another. Each
drawn element has a key, an integer: the id of a node (>= 0), or `~id` of a closed group (< 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Final, Literal

from ...graph import Collective, Edge, Finding, Graph, TensorMeta
from ...graph.immutable import immutable
from .. import labels
from ..groups.call_groups import GRADIENT
from ..groups.groups import Group, Groups, ModuleTree
from ..groups.keys import Keys
from ..options import DrawingSettings, complete
from .values import (
    NO_STUBS,
    Contents,
    FusedNode,
    Highlights,
    InlinedNodes,
    Interest,
    Leaf,
    MergedEdge,
    Open,
    Shading,
    Stubs,
)

Fold = bool | Literal["loops"]
_MAX_TITLE_NAMES = 3  # maximum number of modules or operations named in the title of a loop


@immutable(slots=False)
class Drawing:
    """A graph, and the results of the drawing steps (see steps.py) that were applied to it."""

    graph: Graph
    options: DrawingSettings
    findings: tuple[Finding, ...] = ()
    inner: InlinedNodes = field(default_factory=InlinedNodes)
    fold: Fold = False  # True to draw identical blocks once; "loops" for the steps of a loop only
    size: int | None = None  # maximum number of direct children of a group; None: no groups
    rows: int | None = None  # maximum number of consecutive sibling modules
    limit: int | None = None  # maximum number of boxes; None: as many as fit a page
    whole: bool = False  # True to open every group
    line_width: int = labels.LINE_WIDTH  # maximum number of characters in a line of a name
    fill: float = 0.0  # share of a page that is filled; 0 if the size is not limited
    segments_stacked: bool = False  # True to draw backward passes one below the other
    modules: ModuleTree | None = None  # nested modules, which are split into `groups`
    # All groups of the graph, drawn or not. They are flat lists, because a tree of 100,000 `Leaf`
    # objects would take longer to build than everything else.
    groups: Groups | None = None
    # Group -> title that names the input of its module call: "encoder(positive)".
    call_titles: Mapping[int, str] = field(default_factory=dict)
    interest: Mapping[int, Interest] = field(default_factory=dict)  # by group
    # Group that is drawn as a single operation -> this operation.
    fused: Mapping[int, FusedNode] = field(default_factory=dict)
    start: int | None = None  # the group to draw; None: the whole graph
    # Group (None: the whole graph) -> families of its child groups. A family is a tuple of
    # consecutive identical groups, of which only one is drawn. A group without an identical
    # neighbor is a family of one.
    families: Mapping[int | None, list[tuple[int, ...]]] = field(default_factory=dict)
    tree: Open = field(default_factory=lambda: Open(None))
    keys: Keys | None = None  # None if there are no groups, so that every node is drawn or folded
    edges: tuple[Edge, ...] = ()  # edges between two nodes that have a box
    merged_edges: tuple[MergedEdge, ...] = ()
    # Group that is drawn in place of several identical groups -> text about edges between them.
    linked: Mapping[int, str] = field(default_factory=dict)
    # Key -> text about the tensors that the element passes from one step of a loop to the next.
    loop_state: Mapping[int, str] = field(default_factory=dict)
    # Key -> keys or ids of the element's sources whose edges are not drawn. A text above the
    # element names them.
    named_sources: Mapping[int, list[int]] = field(default_factory=dict)
    # Key -> keys or ids of the element's users whose edges are not drawn. A text below the element
    # names them.
    named_targets: Mapping[int, list[int]] = field(default_factory=dict)
    # Group that is closed, or drawn in place of several identical groups -> nodes it represents.
    contents: Mapping[int, Contents] = field(default_factory=dict)
    # Key of a box or frame -> collectives written in it; None -> collectives that no element shows.
    collectives: Mapping[int | None, list[Collective]] = field(default_factory=dict)
    stubs: Stubs = NO_STUBS  # boxes of data and of calls without a node, with links
    highlights: Highlights = Highlights()
    shading: Shading = Shading()

    def having(self, **changes: Any) -> Drawing:
        """Return a copy with some fields changed.

        `dataclasses.replace` is ten times slower: it would take half of the time of a small
        picture.
        """
        fields = self.__dict__.copy()
        fields.update(changes)
        # Drop cached properties, which may depend on the changed fields.
        for name in ("ends", "outputs", "module_titles", "group_outputs", "closed_groups"):
            fields.pop(name, None)
        made = object.__new__(Drawing)
        # The class is frozen, so assigning to `made.__dict__` would raise.
        object.__setattr__(made, "__dict__", fields)
        return made

    @property
    def nodes(self) -> list[int]:
        """Ids of the nodes that have a box."""
        return self.tree.nodes

    @property
    def boxes(self) -> list[int]:
        """Ids of the closed groups that are drawn."""
        return self.tree.boxes

    @property
    def all_edges(self) -> Iterator[MergedEdge]:
        """Yield every drawn edge as a `MergedEdge`, including edges that were not merged."""
        yield from (MergedEdge(edge.source, edge.target, edge) for edge in self.edges)
        yield from self.merged_edges

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Return the (source key, target key) of each drawn edge: `edges`, then `merged_edges`."""
        ends = [(edge.source, edge.target) for edge in self.edges]
        return ends + [(line.source, line.target) for line in self.merged_edges]

    @cached_property
    def shows_devices(self) -> bool:
        """True if boxes show devices: the graph has several devices, or `detail="full"` is set."""
        if self.options["detail"] == "full":
            return True
        # Most nodes share their tuple of outputs with others, so each tuple is read once.
        distinct = {id(node.outputs): node for node in self.graph.nodes}.values()
        return len({node.device for node in distinct} - {""}) > 1

    @property
    def draws_each(self) -> bool:
        """True if the options require a box for each operation, so that no group is fused."""
        options = self.options
        each = options["detail"] == "full" or options["parameters"] == "nodes"
        return each or options["fold"] is False

    @property
    def fits(self) -> bool:
        """True if the drawing fits a page, or if its size is not limited."""
        return self.fill <= 1

    @property
    def must_fit_page(self) -> bool:
        """True if the drawing has to fit a page.

        It does not have to if the caller set the amount of detail, or if data flows horizontally.
        """
        options = self.options
        asked = options["depth"] is not None or options["limit"] is not None or self.draws_each
        return not asked and options["direction"] in ("TB", "BT")

    @cached_property
    def has_modules(self) -> bool:
        """True if the graph has nodes with a recorded module."""
        return any(node.module or node.module_class for node in self.graph.nodes)

    @cached_property
    def group_outputs(self) -> dict[int, dict[TensorMeta, None]]:
        """Key of a closed group -> the distinct tensors that its nodes pass to nodes outside."""
        found: dict[int, dict[TensorMeta, None]] = {}
        nodes = self.graph.nodes
        for line in self.merged_edges:
            if line.source < 0:
                metas = line.outputs or (self.leaving(line.edge),)
                known = found.setdefault(line.source, {})
                known.update({meta: None for meta in metas if meta is not None})
        for cut in self.graph.cuts:
            if cut.before is not None and cut.tensor is not None and not nodes[cut.before].leaf:
                key = self.key(cut.before)
                if key < 0 and any(self.key(after) != key for after in cut.after):
                    found.setdefault(key, {}).setdefault(cut.tensor)
        for node, nr in self.graph.outputs:
            key = self.key(node)
            if key < 0:
                metas = nodes[node].outputs[nr : nr + 1]
                found.setdefault(key, {}).update({m: None for m in metas if m is not None})
        return found

    def leaving(self, edge: Edge) -> TensorMeta | None:
        """Return the tensor that an edge passes out of a closed group, which contains its source.

        If the edge replaces a chain of views, the result has the shape after the last view that is
        inside the group.
        """
        source, nr = edge.source, edge.output_nr
        key = self.visible_key(source)
        for view in self.inner.views.get(edge, ()):
            if self.keys is None or key is None or key >= 0 or self.keys.key(view) != key:
                break
            source, nr = view, 0
        return (*self.graph.nodes[source].outputs[nr : nr + 1], None)[0]

    @cached_property
    def module_titles(self) -> dict[int, str]:
        """Node -> title of its module, for a module in which no other node is drawn."""
        return {p.node: p.module for p, _, _ in self.tree.parts if type(p) is Leaf and p.module}

    def key(self, node: int) -> int:
        """Return the key of the element that shows a node.

        The element is the node itself, the operation whose box shows the node, the closed group
        that contains the node, or the corresponding element of an identical block that is drawn
        instead.
        """
        host = self.inner.host(node)
        if self.keys is None:
            return host
        key = self.keys.key(host)
        return self.keys.users.get(host, host) if key is None else key

    def represented_nodes(self, node: int, *, loops: bool = True) -> list[int]:
        """Return the nodes that a drawn node represents, itself included.

        Args:
            node: id of the drawn node.
            loops: True to return only the corresponding nodes in the other steps of a loop; False
                to add those in identical blocks, which have their own parameters.
        """
        if self.keys is None or not self.tree.represented_groups:
            return [node]
        return self.keys.represented_nodes(node, loops=loops)

    def visible_key(self, node: int) -> int | None:
        """Return the key of the node's own box, or of the closed group that contains the node.

        Return None if another node's box shows the node, if a node of an identical block represents
        it, or if it is not drawn.
        """
        if node in self.inner.folded:
            return None
        key: int | None = node
        if self.keys is not None:
            key = self.keys.key(node)
        return key if key is None or key == node or key < 0 else None

    @cached_property
    def has_frozen(self) -> bool:
        """True if a parameter of the graph is frozen."""
        return any(not each.requires_grad for each in self.graph.parameters)

    def fused_node(self, key: int) -> FusedNode | None:
        """Return the fused node with this key; None for the key of a node or of another group."""
        return None if key >= 0 or ~key in self.tree.represented_groups else self.fused.get(~key)

    @cached_property
    def outputs(self) -> dict[int, int]:
        """Id of a drawn node -> id of the graph's output that the node shows.

        The two ids differ if the output is computed by the last step of a loop of which only the
        first step is drawn.
        """
        found = {node: node for node, _ in self.graph.outputs}
        return found | {key: node for node in found if (key := self.key(node)) >= 0}

    @cached_property
    def only_first_output(self) -> frozenset[int]:
        """Ids of the nodes with several outputs that have only their first output used.

        The others, such as the mean that a normalization saves, are not results of the user's call.
        """
        if self.options["detail"] == "full":
            return frozenset()
        used = {node.id: set[int]() for node in self.graph.nodes if len(node.outputs) > 1}
        for edge in self.graph.edges if used else ():
            if edge.source in used:
                used[edge.source].add(edge.output_nr)
        for node, number in self.graph.outputs:
            used.get(node, set()).add(number)
        return frozenset(node for node, numbers in used.items() if numbers == {0})

    def outputs_of(self, node: int) -> tuple[TensorMeta | None, ...]:
        """Return the outputs of a node that its box shows."""
        outputs = self.graph.nodes[node].outputs
        return outputs[:1] if node in self.only_first_output else outputs

    @cached_property
    def closed_groups(self) -> list[int]:
        """Ids of the closed groups whose contents are hidden. Fused nodes are not among them."""
        return [number for number in self.boxes if self.fused_node(~number) is None]

    def place(self, key: int) -> int:
        """Return the position of a drawn element in topological order."""
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
        """Return a group's title: its name, with the name of its module if needed."""
        assert self.groups is not None
        groups = self.groups.groups
        part = groups[number]
        alike = self.tree.represented_groups.get(number)
        name = part.name if alike else self.call_titles.get(number, part.name)
        if part.kind == "call":
            name = name.partition("#")[0]
        for outer in self.groups.with_ancestors(part.parent):
            if groups[outer].kind != "module":
                continue
            if name[:1].isdigit() or outer not in self.tree.framed_groups:
                name = f"{groups[outer].name.partition('#')[0]}.{name}"
            # A Sequential without a frame is a prefix, and so are those around it.
            if outer in self.tree.framed_groups or groups[outer].module_class != "Sequential":
                break
        if alike:
            first, last = groups[min(alike)], groups[max(alike)]
            loop = part.kind == "run" and name.startswith("repeat ")
            name = (
                self._loop_title(first, last)
                if loop
                else f"{name} … {labels.row_ending(name, last.name)}"
            )
            name += f"  {labels.TIMES}{len(alike)}{self.linked.get(number, '')}"
        return name

    def _loop_title(self, first: Group, last: Group) -> str:
        """Return the title of a loop.

        The title names the modules of the first and last step; without modules, the operations.
        """
        if row := _list_title(self._body_names(first), self._body_names(last)):
            return row
        names = [
            one if one == end else f"{one} … {end.rpartition('.')[2]}"
            for one, end in zip(self._body_names(first), self._body_names(last), strict=True)
        ]
        if not names:
            names = [self.graph.nodes[i].title for i in last.nodes if i not in self.inner.folded]
        distinct = list(dict.fromkeys(names))
        more = ", …" if len(distinct) > _MAX_TITLE_NAMES else ""
        return ", ".join(distinct[:_MAX_TITLE_NAMES]) + more

    def _body_names(self, part: Group) -> list[str]:
        """Return the names of the modules in one step of a loop, nested loops included."""
        assert self.groups is not None
        found: list[str] = []
        for inner in [self.groups.groups[number] for number in part.children]:
            if inner.kind == "run":
                found += self._body_names(inner)
            elif inner.kind == "module" or inner.name.startswith(GRADIENT):
                found.append(inner.name.partition("#")[0].partition(",")[0])
        return found

    def title_with_class(self, number: int) -> str:
        """Return the title of a group with the class of its module, if recorded."""
        assert self.groups is not None
        return labels.with_class(self.title(number), self.groups.groups[number].module_class)


def _list_title(beginnings: list[str], endings: list[str]) -> str:
    """Return the range of the modules of a list: "h.0 … 5" for "h.0.norm" to "h.5.mlp".

    Return "" if the modules are not all in one list.

    Args:
        beginnings: names of the modules in the first step of a loop.
        endings: names of the modules in the last step.
    """
    lists = {name.partition(".")[0] for name in (*beginnings, *endings)}
    numbers = [name.split(".")[1:2] for name in (*beginnings[:1], *endings[-1:])]
    counted = all(part and part[0].isdecimal() for part in numbers)
    if len(lists) != 1 or len(beginnings) < 2 or not counted:
        return ""
    return f"{lists.pop()}.{numbers[0][0]} … {numbers[1][0]}"


# Every drawing starts as a copy of this empty one, because `having` is faster than a call of
# `Drawing` with its 25 defaults.
NOTHING: Final = Drawing(Graph(()), complete({}))
