"""Drawing steps: add the edges between drawn elements, and replace long edges with two texts.

Each of the two texts names the other end of the edge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import field, replace
from itertools import pairwise

from ...graph import Edge, TensorMeta
from ...graph.immutable import mutable
from ..groups.keys import Keys
from .drawing import Drawing
from .values import Leaf, MergedEdge, Open, Path

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


# A layout may have this many invisible nodes, and a few more for each box.
_MAX_INVISIBLE = 100
_MAX_INVISIBLE_PER_BOX = 1
_MIN_RANKS_CUT = 5  # an edge over fewer ranks is always drawn
_MIN_EDGES = 60  # a drawing with fewer edges keeps all of them


def shorten_edges(drawing: Drawing) -> Drawing:
    """Replace the longest edges with texts at both ends, and return the new drawing."""
    edges, lines = drawing.edges, drawing.merged_edges
    if len(edges) + len(lines) < _MIN_EDGES:
        return drawing
    rank = ranks_with_cycles(drawing) if drawing.keys else _ranks(drawing)
    free = _MAX_INVISIBLE + _MAX_INVISIBLE_PER_BOX * (len(drawing.nodes) + len(drawing.boxes))
    length = sum([rank[edge.target] - rank[edge.source] for edge in edges]) - len(edges)
    if length + sum([rank[line.target] - rank[line.source] - 1 for line in lines]) <= free:
        return drawing
    ends = drawing.ends
    _pull(rank, ends)
    spans = [rank[target] - rank[source] - 1 for source, target in ends]
    excess = sum(span for span in spans if span > 0) - free
    cut: set[int] = set()
    for i in sorted(range(len(spans)), key=lambda i: -spans[i]):
        if excess <= 0 or spans[i] < _MIN_RANKS_CUT:
            break
        excess -= spans[i]
        cut.add(i)
    before, behind = (
        {k: [*v] for k, v in d.items()} for d in (drawing.named_sources, drawing.named_targets)
    )
    for i in sorted(cut):
        source, target = ends[i]
        for named, key, other in ((before, target, source), (behind, source, target)):
            others = named.setdefault(key, [])
            if other not in others:
                others.append(other)
    return drawing.having(
        edges=tuple([edge for i, edge in enumerate(edges) if i not in cut]),
        merged_edges=tuple([line for i, line in enumerate(lines, len(edges)) if i not in cut]),
        named_sources=before,
        named_targets=behind,
    )


def _ranks(drawing: Drawing) -> dict[int, int]:
    """Return an approximate rank of each node in Graphviz: its longest path from an input.

    The drawing must have no groups, so that edges go from lower to higher ids.
    """
    rank = dict.fromkeys(drawing.nodes, 0)
    again = True
    while again:  # one iteration is enough if the edges are sorted by target, as usual
        again = False
        done = -1
        for edge in drawing.edges:
            source, target = edge.source, edge.target
            if rank[source] >= rank[target]:
                rank[target] = rank[source] + 1
                again = again or target < done
            done = target
    return rank


def _pull(rank: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """Move each element to the rank just before its first user.

    An element with more sources than users is not moved, because its edges would become longer in
    total.
    """
    sources: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    for source, target in ends:
        sources.setdefault(target, []).append(source)
        users.setdefault(source, []).append(target)
    for key in sorted(users, key=rank.__getitem__, reverse=True):
        if len(sources.get(key, ())) <= len(users[key]):
            rank[key] = max(rank[key], min(rank[user] for user in users[key]) - 1)


def ranks_with_cycles(drawing: Drawing) -> dict[int, int]:
    """Return the approximate rank (row in the layout) of each key, even if edges form cycles."""
    keys = [*drawing.nodes, *(~number for number in drawing.boxes)]
    users: dict[int, list[int]] = {key: [] for key in keys}
    waiting = dict.fromkeys(keys, 0)
    for source, target in drawing.ends:
        users[source].append(target)
        waiting[target] += 1
    # An element of a cycle never becomes ready. It keeps the rank that its other sources gave it.
    rank = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not waiting[key]]
    for key in ready:
        for user in users[key]:
            rank[user] = max(rank[user], rank[key] + 1)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return rank
