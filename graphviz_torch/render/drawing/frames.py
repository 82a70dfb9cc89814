"""Drawing step: remove the frames around open groups where a frame adds nothing or misleads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from .drawing import Drawing
from .tree import Leaf, Open


def frame(drawing: Drawing) -> Drawing:
    """Remove uninformative frames around open groups, and return the new drawing."""
    if drawing.groups is None:
        return drawing
    # A run or chain (a group of consecutive nodes) keeps its frame only if it is drawn in place of
    # several identical groups.
    kinds, repeated = drawing.groups.groups, drawing.tree.represented_groups
    runs = {n for n in drawing.tree.framed_groups if kinds[n].kind in ("run", "chain")}
    runs.difference_update(repeated)
    runs |= {n for n in drawing.tree.framed_groups if is_plain_sequential(drawing, n)} - {*repeated}
    drawing = _remove_frames(drawing, runs)
    drawing = _remove_frames(drawing, _interrupted_containers(drawing))
    return _remove_frames(drawing, *_single_child_modules(drawing))


def is_plain_sequential(drawing: Drawing, number: int) -> bool:
    """Return True if a group is an nn.Sequential, whose name its modules have in their titles.

    A Sequential that is a whole network or that is called several times is left out, and so is
    every Sequential of a drawing with all details.
    """
    assert drawing.groups is not None
    groups = drawing.groups.groups
    part = groups[number]
    if part.module_class != "Sequential" or drawing.options["detail"] == "full":
        return False
    if number == drawing.start or number in drawing.call_titles:
        return False
    if "." not in part.path and all(row.path for row in drawing.graph.modules):
        return False
    beside = drawing.groups.roots if part.parent is None else groups[part.parent].children
    return "#" not in part.name and all(groups[n].name != f"{part.name}#2" for n in beside)


def _remove_frames(
    drawing: Drawing, groups: Collection[int], alone: dict[int, str] | None = None
) -> Drawing:
    """Return the drawing without the frames of `groups`.

    Args:
        drawing: the drawing.
        groups: ids of the groups.
        alone: node -> title of its module, for nodes that get the title that the frame had.
    """
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

    return drawing.having(tree=drawing.tree.transform(change))


def _interrupted_containers(drawing: Drawing) -> set[int]:
    """Return open containers whose result passes through other modules and comes back.

    An example is an nn.ModuleList of layers with other operations between them. The frame of such a
    container would be a tall, empty column beside these operations.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    containers = [
        n for n in tree.framed_groups if groups[n].kind == "module" and not groups[n].nodes
    ]
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


def _single_child_modules(drawing: Drawing) -> tuple[set[int], dict[int, str]]:
    """Return the open modules with one child, and the titles of modules whose child is a node.

    A module is left out of the result if it is drawn in place of several identical modules and only
    its frame shows their number.

    Returns:
        The ids of the modules, and node -> title of its module.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    inside: dict[int, list[int]] = defaultdict(list)  # group with a frame -> keys inside the frame
    for key, path in tree.paths.items():
        for number in path:
            inside[number].append(key)
    found: set[int] = set()
    alone: dict[int, str] = {}
    for number in sorted(tree.framed_groups, reverse=True):  # inner groups first
        members = inside[number]
        paths = [[n for n in tree.paths[key] if n not in found] for key in members]
        frames = {tuple(path[path.index(number) + 1 :][:1]) for path in paths}
        single = len(members) == 1 or (len(frames) == 1 and () not in frames)
        repeated = number in tree.represented_groups
        if not single or groups[number].kind != "module" or (repeated and len(members) > 1):
            continue
        if len(members) == 1 and members[0] >= 0 and members[0] not in alone:
            alone[members[0]] = drawing.title(number)
        elif repeated:
            continue
        found.add(number)
    return found, alone
