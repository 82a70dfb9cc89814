"""The step that draws the edges between what is open and what is closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...graph import Edge, TensorMeta
from ..groups.keys import Keys
from .drawing import Drawing, Line
from .tree import Leaf, Open, Path

_Ends = tuple[int, int]


@dataclass(slots=True)
class _Found:
    """What becomes of the edges of a graph."""

    drawn: list[Edge] = field(default_factory=list)
    # By both ends: an edge for each tensor that passes, by its node and output.
    lines: dict[_Ends, dict[_Ends, Edge]] = field(default_factory=lambda: defaultdict(dict))
    before: dict[int, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    behind: dict[int, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    links: dict[int, set[_Ends]] = field(default_factory=lambda: defaultdict(set))  # by family
    # Of what a step of a loop hands on, by key, each step and its tensors; keys of what reads it.
    sent: dict[int | None, dict[int, set[_Ends]]] = field(default_factory=dict)
    received: dict[int | None, None] = field(default_factory=dict)


def connect(drawing: Drawing) -> Drawing:
    """The drawing with its edges, and its leaves next to those that use them.

    An edge to what is not drawn is named at the end that is.
    """
    keys = drawing.keys
    if keys is None:
        return drawing.having(edges=drawing.inner.edges)
    found = _sorted_out(drawing, keys)
    edges, lines = _lines(drawing, found)
    inner = drawing.inner
    units = [drawing.unit(~number) for number in drawing.boxes]
    shown = keys.shown.union(*[unit.nodes for unit in units if unit is not None])
    inside = {i: users for i, users in inner.inside.items() if i in shown}
    made = drawing.having(
        inner=replace(inner, inside=inside),
        edges=tuple(edges),
        lines=tuple(lines),
        linked={family: _linked(drawing, family, pairs) for family, pairs in found.links.items()},
        handed=_handed(found),
        before={end: list(names) for end, names in found.before.items()},
        behind={end: list(names) for end, names in found.behind.items()},
    )
    return made.having(tree=_with_leaves(made))


def _sorted_out(drawing: Drawing, keys: Keys) -> _Found:
    found = _Found()
    nodes, of = drawing.graph.nodes, keys.tree.of
    shown, hidden, box = keys.shown, keys.hidden, keys.box
    for edge in drawing.inner.edges:
        start, end = of[edge.source], of[edge.target]
        if start in hidden:
            if nodes[edge.source].leaf:
                user = keys.of(edge.target)
                if user is not None:
                    keys.users.setdefault(edge.source, user)
            if end in hidden and hidden[start] == hidden[end]:
                continue  # it is inside what is not drawn
        elif edge.source in shown and edge.target in shown:
            found.drawn.append(edge)
            continue
        if start == end and start in box:
            continue
        if start in hidden or end in hidden:
            families = keys.between(edge.source, edge.target)
            for family, pair in families.items():
                found.links[family].add(pair)
                if keys.is_loop(family):
                    steps = found.sent.setdefault(keys.of(edge.source), {})
                    steps.setdefault(pair[0], set()).add((edge.source, edge.output_nr))
                    found.received[keys.of(edge.target)] = None
            if families or (start in hidden and end in hidden):
                continue  # the group that is drawn has an edge of its own for it
        source, target = keys.of(edge.source), keys.of(edge.target)
        if source is None or target is None:
            if target is not None:
                found.before[target][edge.source] = None
            if source is not None and end not in hidden:
                found.behind[source][edge.target] = None
        elif source != target:
            found.lines[source, target].setdefault((edge.source, edge.output_nr), edge)
    return found


def _lines(drawing: Drawing, found: _Found) -> tuple[list[Edge], list[Line]]:
    """Edges between nodes, and lines for those that end at a closed group or are several."""
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
            lines.append(Line(source, target, edge, len(passing), metas))
    return edges, lines


def _output(drawing: Drawing) -> Callable[[Edge], TensorMeta | None]:
    nodes = drawing.graph.nodes
    return lambda edge: (*nodes[edge.source].outputs[edge.output_nr :], None)[0]


def _handed(found: _Found) -> dict[int, str]:
    """By key, what a step of a loop hands the next one, or reads of the one before."""
    texts: dict[int, str] = {}
    for key in {**found.sent, **found.received}:
        if key is not None:
            says = ["↑ reads the step before"] if key in found.received else []
            steps = found.sent.get(key, {})
            times = max(map(len, steps.values()), default=0)
            if times:
                what = f"{times} tensors go" if times > 1 else "goes"
                says.append(f"↓ {what} on to the next step")
            texts[key] = ", ".join(says)
    return texts


def _linked(drawing: Drawing, family: int, pairs: set[_Ends]) -> str:
    """How the groups of a family are linked among themselves, in words."""
    keys = drawing.keys
    assert keys is not None
    groups = keys.tree.groups
    members = sorted(keys.repeated[family], key=lambda number: groups[number].span)
    if pairs != set(pairwise(members)):
        return ", with edges between them"
    return ", side by side" if _side_by_side(drawing, members) else ""


def _side_by_side(drawing: Drawing, steps: list[int]) -> bool:
    """Do the modules of a loop's steps read nothing of the steps before?

    So it is with the experts of a mixture: only their results are put together one after another.
    """
    tree = drawing.groups
    assert tree is not None
    *_, before, last = (tree.groups[number] for number in steps)
    own = [n for n in last.children if tree.groups[n].kind == "module"]
    if last.kind != "run" or not own:
        return False
    inner = [tree.groups[n] for number in own for n in tree.below(number)]
    reached = set(tree.operations[slice(*before.span)])
    inside = set(tree.operations[slice(*last.span)])
    edges = [edge for edge in drawing.inner.edges if edge.target in inside]
    for edge in sorted(edges, key=lambda edge: tree.places[edge.target]):
        if edge.source in reached:
            reached.add(edge.target)
    return all(reached.isdisjoint(part.nodes) for part in inner)


def _with_leaves(drawing: Drawing) -> Open:
    """The tree with each leaf that is drawn outside the modules that share it."""
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

    return drawing.tree.rebuilt(change) if moved else drawing.tree


def _common(paths: list[Path]) -> int | None:
    """The innermost group that all paths have in common."""
    same = [numbers[0] for numbers in zip(*paths, strict=False) if len(set(numbers)) == 1]
    return same[-1] if same else None
