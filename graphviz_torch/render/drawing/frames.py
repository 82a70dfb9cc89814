"""The step that draws no frame around groups where it would tell nothing, or mislead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from .drawing import Drawing
from .tree import Leaf, Open


def frame(drawing: Drawing) -> Drawing:
    """The drawing with frames around those open groups that show a reader something."""
    if drawing.groups is None:
        return drawing
    # A run that is drawn for itself only means nothing to a reader.
    kinds, repeated = drawing.groups.groups, drawing.tree.repeated
    runs = {n for n in drawing.tree.opened if kinds[n].kind in ("run", "chain")}
    runs.difference_update(repeated)
    drawing = _without(drawing, runs)
    drawing = _without(drawing, _scattered(drawing))
    return _without(drawing, *_single(drawing))


def _without(
    drawing: Drawing, groups: Collection[int], alone: dict[int, str] | None = None
) -> Drawing:
    """The drawing without the frames of these groups; the nodes in `alone` get their titles."""
    if not groups:
        return drawing
    titles = alone or {}

    def change(part: Open) -> Open:
        part = replace(part, framed=part.framed and part.group not in groups)
        if not any(type(c) is Leaf and c.node in titles for c in part.children):
            return part
        named = [
            Leaf(c.node, titles.get(c.node, c.module)) if type(c) is Leaf else c
            for c in part.children
        ]
        return replace(part, children=tuple(named))

    return drawing.having(tree=drawing.tree.rebuilt(change))


def _scattered(drawing: Drawing) -> set[int]:
    """Open containers, such as an nn.ModuleList, that the flow of data leaves and enters again.

    Drawn as a cluster, each would be a tall and empty column beside what lies between its parts.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    containers = [n for n in tree.opened if groups[n].kind == "module" and not groups[n].nodes]
    if not containers:
        return set()
    users: dict[int, list[int]] = defaultdict(list)
    for source, target in drawing.ends:
        users[source].append(target)
    around = {key: set(path) for key, path in tree.paths.items()}
    found: set[int] = set()
    for number in containers:
        members = [key for key, path in around.items() if number in path]
        behind = [user for key in members for user in users[key] if number not in around[user]]
        seen = set(behind)
        for key in behind:
            fresh = [user for user in users[key] if user not in seen]
            if any(number in around[user] for user in fresh):
                found.add(number)
                break
            seen.update(fresh)
            behind += fresh
    return found


def _single(drawing: Drawing) -> tuple[set[int], dict[int, str]]:
    """Open modules that hold one thing, and titles for the operations that are all of one.

    Such a module's frame stays where it alone says how many modules it stands for.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    inside: dict[int, list[int]] = defaultdict(list)  # the keys in each framed group
    for key, path in tree.paths.items():
        for number in path:
            inside[number].append(key)
    found: set[int] = set()
    alone: dict[int, str] = {}
    for number in sorted(tree.opened, reverse=True):  # inner ones first
        members = inside[number]
        paths = [[n for n in tree.paths[key] if n not in found] for key in members]
        frames = {tuple(path[path.index(number) + 1 :][:1]) for path in paths}
        single = len(members) == 1 or (len(frames) == 1 and () not in frames)
        repeated = number in tree.repeated
        if not single or groups[number].kind != "module" or (repeated and len(members) > 1):
            continue
        if len(members) == 1 and members[0] >= 0 and members[0] not in alone:
            alone[members[0]] = drawing.title(number)
        elif repeated:
            continue
        found.add(number)
    return found, alone
