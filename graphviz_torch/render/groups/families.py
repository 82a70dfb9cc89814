"""Groups that follow each other and are alike: a picture needs to show one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .groups import Group, Groups
from .likeness import unnumbered

# So few graphs of a step are drawn each, though they are alike: their names tell what they are.
_GRAPHS = 3
_LEAST = 2  # groups in a stack: one alone needs no other around it
_DIGITS = re.compile(r"\d+$")


def families(tree: Groups, children: Iterable[int]) -> list[tuple[int, ...]]:
    """Groups that follow each other, are alike, and have no operation between them.

    Modules have names that differ in a number alone: an encoder is not drawn for a decoder. Each
    family begins with the group that is drawn for all; a group that is like no other is alone.
    """
    groups = tree.groups
    found: list[list[int]] = []
    last: Group | None = None
    for child in children:
        part = groups[child]
        if last is not None and _follows(last, part):
            found[-1].append(child)
        else:
            found.append([child])
        last = part
    rows: list[tuple[int, ...]] = []
    for family in found:
        few = len(family) <= _GRAPHS and groups[family[0]].kind == "graph"
        rows += [(child,) for child in family] if few else [_complete_first(tree, family)]
    return rows


def _complete_first(tree: Groups, family: Sequence[int]) -> tuple[int, ...]:
    """The family, the one that is drawn first: a loop's first step may lack what the others do."""
    first = max(
        family, key=lambda number: tree.groups[number].span[1] - tree.groups[number].span[0]
    )
    return (first, *[number for number in family if number != first])


def _follows(last: Group, part: Group) -> bool:
    adjacent = last.span[1] == part.span[0] and part.kind not in ("chain", "call")
    return adjacent and last.like == part.like and _stem(last) == _stem(part)


def _stem(part: Group) -> str:
    return unnumbered(part.path.rpartition(".")[2]) if part.kind == "module" else ""


def stacked(tree: Groups) -> Groups:
    """The tree, where what follows the shown one of a family lies in a group of its own.

    Of twelve blocks the first stands by itself, and the other eleven in a group "1-11".
    """
    stacks: dict[int, tuple[int, ...]] = {}  # those that follow, by the first of them
    for row in (tree.roots, *[part.children for part in tree.groups]):
        for family in families(tree, row):
            members = sorted(family)
            rest = members[members.index(family[0]) + 1 :]
            if len(rest) >= _LEAST:
                stacks[rest[0]] = tuple(rest)
    if not stacks:
        return tree
    numbers: dict[int, int] = {}
    stands: dict[int, int] = {}  # the number of the stack that begins with a group
    count = 0
    for old in range(len(tree.groups)):
        if old in stacks:
            stands[old] = count
            count += 1
        numbers[old] = count
        count += 1
    home = {member: stands[first] for first, rest in stacks.items() for member in rest}
    made: list[Group] = []
    for old, part in enumerate(tree.groups):
        if old in stacks:
            following = [tree.groups[n] for n in stacks[old]]
            made.append(_stack(following, stands[old], numbers))
        outer = None if part.parent is None else numbers[part.parent]
        made.append(
            part._replace(
                id=numbers[old],
                parent=home.get(old, outer),
                children=_row(part.children, numbers, stands, home),
                like=numbers[part.like],
            )
        )
    return replace(
        tree,
        groups=tuple(made),
        of=tuple([None if n is None else numbers[n] for n in tree.of]),
        roots=_row(tree.roots, numbers, stands, home),
    )


def _row(
    children: Sequence[int], numbers: dict[int, int], stands: dict[int, int], home: dict[int, int]
) -> tuple[int, ...]:
    return tuple(
        [
            stands[child] if child in stands else numbers[child]
            for child in children
            if child in stands or child not in home
        ]
    )


def _stack(rest: Sequence[Group], number: int, numbers: dict[int, int]) -> Group:
    first = rest[0]
    name = _name_of_row(first.name, rest[-1].name)
    outer = None if first.parent is None else numbers[first.parent]
    return Group(
        number,
        name,
        f"{first.path.removesuffix(first.name)}{name}",
        outer,
        "stack",
        tuple([numbers[part.id] for part in rest]),
        (),
        sum(part.size for part in rest),
        (first.span[0], rest[-1].span[1]),
        number,
        first.module_class,
    )


def _name_of_row(first: str, last: str) -> str:
    """What "1" and "11" are called together: "1-11"; "0#2" and "0#60" are "0#2-60"."""
    stem, ends = _DIGITS.sub("", first), [_DIGITS.search(name) for name in (first, last)]
    if all(ends) and stem == _DIGITS.sub("", last):
        return f"{first}-{ends[1][0]}"  # type: ignore[index]
    return f"{first} to {last}"
