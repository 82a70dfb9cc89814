"""Find families: consecutive identical groups, of which a picture draws only one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from .groups import Group, Groups
from .isomorphism import without_numbers

# Identical backward passes are drawn one by one up to this number, so that each shows its title.
_MAX_GRAPHS_APART = 3
_MIN_STACK = 2  # minimum number of groups that are put into a stack
_DIGITS = re.compile(r"\d+$")

Rows = Callable[[Sequence[int]], list[tuple[int, ...]]]


def families(tree: Groups, children: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the families: identical groups without other operations between them.

    The names of the modules in a family differ only in a number, so an encoder and a decoder are
    never in one family. Only the first group of a family is drawn. A group without an identical
    neighbor is a family of one.
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
        few = len(family) <= _MAX_GRAPHS_APART and groups[family[0]].kind == "graph"
        rows += [(child,) for child in family] if few else [_complete_first(tree, family)]
    return rows


def _complete_first(tree: Groups, family: Sequence[int]) -> tuple[int, ...]:
    """Return a family with its largest group moved to the front.

    The first step of a loop may have fewer operations than the others.
    """
    first = max(
        family, key=lambda number: tree.groups[number].span[1] - tree.groups[number].span[0]
    )
    return (first, *[number for number in family if number != first])


def _follows(last: Group, part: Group) -> bool:
    adjacent = last.span[1] == part.span[0] and part.kind not in ("chain", "call")
    return adjacent and last.like == part.like and _stem(last) == _stem(part)


def _stem(part: Group) -> str:
    return without_numbers(part.path.rpartition(".")[2]) if part.kind == "module" else ""


def group_repeats(tree: Groups, rows: Rows | None = None) -> Groups:
    """Return the tree with a new group, a stack, around the repetitions in each family.

    For example, the first of twelve blocks "0" to "11" remains, and the others are put into a stack
    "1-11".

    Args:
        tree: the tree.
        rows: a function that returns the families of sibling groups; None uses `families`. If the
            function returns the groups inside a run instead of the run (a group of consecutive
            groups), the run is removed from the tree.
    """
    stacks: dict[int, tuple[int, ...]] = {}  # second group of a family -> all groups but the first
    inside: dict[int | None, list[int]] = {}  # group -> its children, without the runs in `gone`
    gone: set[int] = set()  # runs to remove from the tree; the groups inside them are kept
    for level, children in (
        (None, tree.roots),
        *((part.id, part.children) for part in tree.groups),
    ):
        if not children or level in gone:
            continue
        found = families(tree, children) if rows is None else rows(children)
        inside[level] = [member for family in found for member in sorted(family)]
        gone.update(_replaced_runs(tree, children, inside[level]))
        for family in found:
            members = sorted(family)
            rest = members[members.index(family[0]) + 1 :]
            if len(rest) >= _MIN_STACK:
                stacks[rest[0]] = tuple(rest)
    if not stacks and not gone:
        return tree
    outer = {member: level for level, row in inside.items() for member in row}
    numbers: dict[int, int] = {}
    stack_ids: dict[int, int] = {}  # second group of a family -> id of the new stack
    count = 0
    for old in range(len(tree.groups)):
        if old in gone:
            continue
        if old in stacks:
            stack_ids[old] = count
            count += 1
        numbers[old] = count
        count += 1
    home = {member: stack_ids[first] for first, rest in stacks.items() for member in rest}
    made: list[Group] = []
    for old in numbers:
        part = tree.groups[old]
        level = outer[old]
        parent = None if level is None else numbers[level]
        if old in stacks:
            following = [tree.groups[n] for n in stacks[old]]
            made.append(_stack(following, stack_ids[old], parent, numbers))
        made.append(
            part._replace(
                id=numbers[old],
                parent=home.get(old, parent),
                children=_row(inside.get(old, ()), numbers, stack_ids, home),
                like=numbers.get(part.like, numbers[old]),
            )
        )
    return replace(
        tree,
        groups=tuple(made),
        of=tuple([None if n is None else numbers[n] for n in tree.of]),
        roots=_row(inside.get(None, ()), numbers, stack_ids, home),
    )


def _replaced_runs(tree: Groups, children: Iterable[int], row: Iterable[int]) -> Iterator[int]:
    """Yield the runs (groups of consecutive nodes) that are not drawn, but the groups inside are.

    Args:
        tree: the tree of groups.
        children: the children of a group.
        row: the groups that are drawn: the children, but some runs replaced with the groups inside.
    """
    kept = set(row)
    left = [number for number in children if number not in kept]
    for number in left:  # the loop appends groups inside replaced runs
        left += [inner for inner in tree.groups[number].children if inner not in kept]
        yield number


def _row(
    children: Sequence[int],
    numbers: dict[int, int],
    stack_ids: dict[int, int],
    home: dict[int, int],
) -> tuple[int, ...]:
    return tuple(
        [
            stack_ids[child] if child in stack_ids else numbers[child]
            for child in children
            if child in stack_ids or child not in home
        ]
    )


def _stack(
    rest: Sequence[Group], number: int, parent: int | None, numbers: dict[int, int]
) -> Group:
    first = rest[0]
    name = _name_of_row(first.name, rest[-1].name)
    return Group(
        number,
        name,
        f"{first.path.removesuffix(first.name)}{name}",
        parent,
        "stack",
        tuple([numbers[part.id] for part in rest]),
        (),
        sum(part.size for part in rest),
        (first.span[0], rest[-1].span[1]),
        number,
        first.module_class,
    )


def _name_of_row(first: str, last: str) -> str:
    """Return the name of a stack: "1-11" for "1" to "11", "0#2-60" for "0#2" to "0#60"."""
    stem, ends = _DIGITS.sub("", first), [_DIGITS.search(name) for name in (first, last)]
    if all(ends) and stem == _DIGITS.sub("", last):
        return f"{first}-{ends[1][0]}"  # type: ignore[index]
    return f"{first} to {last}"
