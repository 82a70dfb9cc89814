"""Identical blocks of a flow diagram as one: of twelve layers, the rows of the first are drawn.

The rows of a block name the gradient of its first and last occurrence. Blocks stay apart where the
gradient is the message: if they have one row each, if their parameters differ in whether they
learn, if a cut is at one of them, or if their gradients differ by more than `_MAX_RATIO`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from .diagram import FlowDiagram, FlowLink, FlowNode

_MAX_RATIO: Final = 100.0  # of the gradients at one row of all blocks
_NUMBER: Final = re.compile(r"\d+")

_Kind = tuple[object, ...]  # equal for rows that may be drawn as one


def fold_blocks(diagram: FlowDiagram) -> FlowDiagram:
    """Return the diagram with each row of identical consecutive blocks drawn once."""
    nodes = diagram.nodes
    cut = {end for each in diagram.cuts for end in (each.source, each.target)}
    kinds = [(at,) if at in cut else _kind(node) for at, node in enumerate(nodes)]
    inside = {(link.source, link.target) for link in diagram.links}
    moved = list(range(len(nodes)))  # row -> the row that represents it
    made: dict[int, FlowNode] = {}
    at = 0
    while at < len(nodes):
        size, times = _longest_repeat(nodes, kinds, inside, at)
        for row in range(at, at + size):
            made[row] = _merge(nodes[row : row + size * times : size])
        for row in range(at + size, at + size * times):
            moved[row] = moved[row - size]
        at += size * times
    number = {row: place for place, row in enumerate(sorted(made))}
    links: dict[tuple[int, int], FlowLink] = {}
    for link in diagram.links:
        ends = number[moved[link.source]], number[moved[link.target]]
        if ends[0] < ends[1] and (ends not in links or (link.norm or 0) > (links[ends].norm or 0)):
            links[ends] = link._replace(source=ends[0], target=ends[1])
    cuts = [
        each._replace(
            source=None if each.source is None else number[each.source],
            target=None if each.target is None else number[each.target],
        )
        for each in diagram.cuts
    ]
    return diagram._replace(
        nodes=tuple([made[row] for row in sorted(made)]),
        links=tuple(sorted(links.values())),
        cuts=tuple(cuts),
    )


def _kind(node: FlowNode) -> _Kind:
    parameters = [(each.name, each.state) for each in node.parameters]
    name = _NUMBER.sub("#", node.name)
    return name, node.kind, node.segment, node.norm is None, node.output, tuple(parameters)


def _longest_repeat(
    nodes: Sequence[FlowNode], kinds: Sequence[_Kind], links: set[tuple[int, int]], at: int
) -> tuple[int, int]:
    """Return the size of the block that begins at a row, and the number of its occurrences.

    It is (1, 1) for a row that is in no repeated block.
    """
    found = 1, 1
    if not nodes[at].name:
        return found  # where links meet, a block ends
    for size in range(2, (len(nodes) - at) // 2 + 1):
        times = 1
        while _follows(nodes, kinds, links, at, at + size * times, size, times):
            times += 1
        if times > 1 and size * (times - 1) > found[0] * (found[1] - 1):
            found = size, times
    return found


def _follows(
    nodes: Sequence[FlowNode],
    kinds: Sequence[_Kind],
    links: set[tuple[int, int]],
    first: int,
    other: int,
    size: int,
    times: int,
) -> bool:
    """Return True if the rows from `other` on are block number `times` after the first."""
    if [*kinds[first : first + size]] != [*kinds[other : other + size]]:
        return False
    pairs = [*zip(nodes[first : first + size], nodes[other : other + size], strict=True)]
    apart = [_numbers_apart(one.name, two.name) for one, two in pairs if one.name]
    counts = {(int(number[0]), end) for number, end in filter(None, apart)}
    begins = sorted(begin for begin, _ in counts)
    # A block is one number, or a few in a row, such as an attention "0" and a feed-forward "1".
    if None in apart or not counts or begins[-1] - begins[0] != len(begins) - 1:
        return False
    if len(apart) == len(begins):
        return False  # layers of one row each show the gradient by depth
    if any(end - begin != times * len(begins) for begin, end in counts):
        return False
    if not all(_are_near(one.norm, two.norm) for one, two in pairs):
        return False
    rows = range(size)
    return all(
        ((first + a, first + b) in links) == ((other + a, other + b) in links)
        for a in rows
        for b in rows
        if a < b
    )


def _are_near(one: float | None, other: float | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    low, high = sorted((abs(one), abs(other)))
    return low > 0 and high / low <= _MAX_RATIO


def _numbers_apart(first: str, last: str) -> tuple[re.Match[str], int] | None:
    """Return the only number in which two paths differ, and the last path's number; None if more
    differs.
    """
    ones, others = _NUMBER.finditer(first), _NUMBER.finditer(last)
    found = [(a, int(b[0])) for a, b in zip(ones, others, strict=False) if a[0] != b[0]]
    return found[0] if len(found) == 1 else None


def _range_name(first: str, last: str) -> str:
    """Return the common name of modules whose paths differ in one number.

    >>> _range_name("h.0.ln_1", "h.3.ln_1")
    'h.0-3.ln_1'
    """
    apart = _numbers_apart(first, last)
    if apart is None:
        return first
    number, end = apart
    return f"{first[: number.end()]}-{end}{first[number.end() :]}"


def _merge(nodes: Sequence[FlowNode]) -> FlowNode:
    """Return one node for the same row of all blocks."""
    first, last = nodes[0], nodes[-1]
    if first is last:
        return first
    return first._replace(
        name=_range_name(first.name, last.name),
        parameters=tuple([each for node in nodes for each in node.parameters]),
        times=len(nodes),
        last_norm=last.norm,
    )
