"""Drawing step: add the edges between the drawn nodes and closed groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import field, replace
from itertools import pairwise

from ...graph import Edge, TensorMeta
from ...graph.immutable import mutable
from ..groups.keys import Keys
from .drawing import Drawing
from .tree import Leaf, Open, Path
from .values import MergedEdge

_Ends = tuple[int, int]


@mutable
class _Found:
    """The edges of a graph, sorted by how they are drawn: as lines or as texts."""

    drawn: list[Edge] = field(default_factory=list)
    # (source key, target key) -> tensor (node id, output_nr) -> first edge that passes this tensor.
    lines: dict[_Ends, dict[_Ends, Edge]] = field(default_factory=lambda: defaultdict(dict))
    before: dict[int, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    behind: dict[int, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    # First group of a family (identical groups) -> pairs of groups of this family with an edge.
    links: dict[int, set[_Ends]] = field(default_factory=lambda: defaultdict(set))
    # Key of an element in a loop -> step of the loop -> tensors (node id, output_nr) that the
    # element passes from this step to another step.
    sent: dict[int | None, dict[int, set[_Ends]]] = field(default_factory=dict)
    # Keys of the elements that read a tensor from another step of their loop.
    received: dict[int | None, None] = field(default_factory=dict)


def connect(drawing: Drawing) -> Drawing:
    """Add the edges, and return the new drawing.

    A leaf is moved to the innermost group that contains all operations that use it. If only one end
    of an edge is drawn, a text there names the other end.
    """
    keys = drawing.keys
    if keys is None:
        return drawing.having(edges=drawing.inner.edges)
    found = _classify_edges(drawing, keys)
    edges, lines = _merge_edges(drawing, found)
    inner = drawing.inner
    units = [drawing.fused_node(~number) for number in drawing.boxes]
    shown = keys.shown.union(*[unit.nodes for unit in units if unit is not None])
    inside = {i: users for i, users in inner.inside.items() if i in shown}
    made = drawing.having(
        inner=replace(inner, inside=inside),
        edges=tuple(edges),
        merged_edges=tuple(lines),
        linked={
            family: _link_text(drawing, family, pairs) for family, pairs in found.links.items()
        },
        loop_state=_loop_state_texts(found),
        named_sources={end: list(names) for end, names in found.before.items()},
        named_targets={end: list(names) for end, names in found.behind.items()},
    )
    return made.having(tree=_with_leaves(made))


def _classify_edges(drawing: Drawing, keys: Keys) -> _Found:
    found = _Found()
    nodes, of = drawing.graph.nodes, keys.tree.of
    shown, hidden, box = keys.shown, keys.hidden, keys.box
    for edge in drawing.inner.edges:
        start, end = of[edge.source], of[edge.target]
        if start in hidden:
            if nodes[edge.source].leaf:
                user = keys.key(edge.target)
                if user is not None:
                    keys.users.setdefault(edge.source, user)
            if end in hidden and hidden[start] == hidden[end]:
                continue  # the edge is inside a group that is not drawn
        elif edge.source in shown and edge.target in shown:
            found.drawn.append(edge)
            continue
        if start == end and start in box:
            continue
        if start in hidden or end in hidden:
            families = keys.family_links(edge.source, edge.target)
            for family, pair in families.items():
                found.links[family].add(pair)
                if keys.is_loop(family):
                    steps = found.sent.setdefault(keys.key(edge.source), {})
                    steps.setdefault(pair[0], set()).add((edge.source, edge.output_nr))
                    found.received[keys.key(edge.target)] = None
            if families or (start in hidden and end in hidden):
                continue  # the drawn group of the family has a corresponding edge
        source, target = keys.key(edge.source), keys.key(edge.target)
        if source is None or target is None:
            if target is not None:
                found.before[target][edge.source] = None
            if source is not None and end not in hidden:
                found.behind[source][edge.target] = None
        elif source != target:
            found.lines[source, target].setdefault((edge.source, edge.output_nr), edge)
    return found


def _merge_edges(drawing: Drawing, found: _Found) -> tuple[list[Edge], list[MergedEdge]]:
    """Return (edges that are drawn one by one, merged edges).

    Two nodes that are connected by one tensor get a plain edge. Any other two connected elements
    get one merged edge, which represents all edges between them.
    """
    edges, between = found.drawn, found.lines
    if between:
        edges = []
        for edge in found.drawn:
            ends = edge.source, edge.target
            if ends in between:
                between[ends].setdefault((edge.source, edge.output_nr), edge)
            else:
                edges.append(edge)
    lines = []
    for (source, target), passing in between.items():
        edge = next(iter(passing.values()))
        if source >= 0 and target >= 0 and len(passing) == 1:
            edges.append(Edge(source, target, edge.output_nr, edge.input_nr))
        else:
            leave = drawing.leaving if source < 0 else _output(drawing)
            metas = tuple(dict.fromkeys(map(leave, passing.values())))
            lines.append(MergedEdge(source, target, edge, len(passing), metas))
    return edges, lines


def _output(drawing: Drawing) -> Callable[[Edge], TensorMeta | None]:
    nodes = drawing.graph.nodes
    return lambda edge: (*nodes[edge.source].outputs[edge.output_nr :], None)[0]


def _loop_state_texts(found: _Found) -> dict[int, str]:
    """Return, by key of an element in a loop, a text on the tensors it passes to the next step."""
    texts: dict[int, str] = {}
    for key in {**found.sent, **found.received}:
        if key is not None:
            says = ["↑ reads the step before"] if key in found.received else []
            steps = found.sent.get(key, {})
            times = max(map(len, steps.values()), default=0)
            if times:
                passed = f"{times} tensors go" if times > 1 else "goes"
                says.append(f"↓ {passed} on to the next step")
            texts[key] = ", ".join(says)
    return texts


def _link_text(drawing: Drawing, family: int, pairs: set[_Ends]) -> str:
    """Return the end of a family's title: how its identical groups are connected."""
    keys = drawing.keys
    assert keys is not None
    groups = keys.tree.groups
    members = sorted(keys.repeated[family], key=lambda number: groups[number].span)
    if pairs != set(pairwise(members)):
        return ", with edges between them"
    return ", side by side" if _side_by_side(drawing, members) else ""


def _side_by_side(drawing: Drawing, steps: list[int]) -> bool:
    """Return True if the modules in one step of a loop read nothing from the previous step.

    An example is a loop over the experts of a mixture that only adds up the experts' results.
    """
    tree = drawing.groups
    assert tree is not None
    *_, before, last = (tree.groups[number] for number in steps)
    own = [n for n in last.children if tree.groups[n].kind == "module"]
    if last.kind != "run" or not own:
        return False
    inner = [tree.groups[n] for number in own for n in tree.with_descendants(number)]
    reached = set(tree.operations[slice(*before.span)])
    inside = set(tree.operations[slice(*last.span)])
    edges = [edge for edge in drawing.inner.edges if edge.target in inside]
    for edge in sorted(edges, key=lambda edge: tree.places[edge.target]):
        if edge.source in reached:
            reached.add(edge.target)
    return all(reached.isdisjoint(part.nodes) for part in inner)


def _with_leaves(drawing: Drawing) -> Open:
    """Return the tree with each drawn leaf moved to the innermost group around all its users."""
    nodes = drawing.graph.nodes
    around: dict[int, list[Path]] = defaultdict(list)
    paths = drawing.tree.paths
    for source, target in drawing.ends:
        if source >= 0 and nodes[source].leaf:
            around[source].append(paths[target])
    homes = {leaf: _common(users) for leaf, users in around.items()}
    moved = {leaf: home for leaf, home in homes.items() if home != drawing.tree.homes[leaf]}
    arrived: dict[int | None, list[Leaf]] = defaultdict(list)
    for leaf, home in moved.items():
        arrived[home].append(Leaf(leaf))

    def change(part: Open) -> Open:
        stay = [c for c in part.children if type(c) is not Leaf or c.node not in moved]
        return replace(part, children=(*stay, *arrived[part.group]))

    return drawing.tree.transform(change) if moved else drawing.tree


def _common(paths: list[Path]) -> int | None:
    """Return the innermost group that is in all paths; None if no group is in all of them."""
    same = [numbers[0] for numbers in zip(*paths, strict=False) if len(set(numbers)) == 1]
    return same[-1] if same else None
