"""Define the values of a flow diagram, draw identical blocks of it once, and route its links.

The values are modules, links between modules, and cuts.

Identical blocks are, for example, twelve equal layers. Each row of the drawn block shows the
gradient norms of the first and the last block. Blocks are drawn separately in these cases:

- The blocks have only one row.
- A cut is at one of the blocks.
- A parameter of one block learns, and the corresponding parameter of another does not.
- The gradients differ by a factor of more than `_MAX_RATIO`.

Links run in parallel vertical lanes, as in `git log --graph`. Each node has its own row. The link
of a node's result runs down in a lane to the last user of the result. If there are several users,
the first user is in this lane, and the link continues below the first user in another lane.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from ...graph.immutable import NamedTuple

State = Literal["learns", "learns_nothing", "frozen", ""]


class ParameterFlow(NamedTuple):
    """A parameter, which is drawn beside its module."""

    name: str  # name without the module's path
    state: State
    norm: float | None  # norm of the gradient; None if there was none


class FlowNode(NamedTuple):
    """A node of the diagram: a module, or another operation where links meet or end."""

    name: str  # "" for an unnamed operation that only joins links
    kind: str  # class of the module, or operation
    norm: float | None  # gradient norm of the result; None if there was no gradient
    segment: str  # title of the node's backward pass; "" if the step has only one pass
    parameters: tuple[ParameterFlow, ...] = ()
    output: bool = False
    times: int = 1  # number of identical blocks whose modules this node represents
    last_norm: float | None = None  # gradient norm of the module in the last of these blocks

    @property
    def state(self) -> State:
        """State of the node's parameters: "learns_nothing" if any of them learns nothing."""
        states = {each.state for each in self.parameters}
        return next((s for s in ("learns_nothing", "learns", "frozen") if s in states), "")


class FlowLink(NamedTuple):
    """A result of one node that another node uses."""

    source: int  # index of a node
    target: int
    norm: float | None  # norm of the result's gradient, summed over all users of the result
    nonfinite: bool = False


class FlowCut(NamedTuple):
    """A cut, such as a detach, where the gradient stops."""

    # index of the node that computed the detached tensor; None if no node of the diagram did
    source: int | None
    target: int | None
    text: tuple[str, ...]  # lines of text: the operation, and its source line
    harmful: bool  # True if a finding reports the cut


class FlowDiagram(NamedTuple):
    """The gradient flow of one training step."""

    nodes: tuple[FlowNode, ...]  # nodes in the order of forward
    links: tuple[FlowLink, ...]
    cuts: tuple[FlowCut, ...]
    sentence: str
    frozen: int  # number of frozen parameters; 0 if all are frozen, because `sentence` says so
    learns_nothing: bool  # True if a trainable parameter learns nothing


_MAX_RATIO: Final = 100.0  # maximum ratio of the gradient norms at corresponding rows
_NUMBER: Final = re.compile(r"\d+")

_Kind = tuple[object, ...]  # key of a row; rows with equal keys may be drawn as one


def fold_blocks(diagram: FlowDiagram) -> FlowDiagram:
    """Replace consecutive identical blocks with the first one, and return the new diagram."""
    nodes = diagram.nodes
    cut = {end for each in diagram.cuts for end in (each.source, each.target)}
    kinds = [(at,) if at in cut else _kind(node) for at, node in enumerate(nodes)]
    inside = {(link.source, link.target) for link in diagram.links}
    moved = list(range(len(nodes)))  # row -> the corresponding row of the drawn block
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
    """Return (number of rows of the block that begins at row `at`, number of its repetitions).

    Return (1, 1) if no repeated block begins there.
    """
    found = 1, 1
    if not nodes[at].name:
        return found  # no block begins at an operation that only joins links
    named = 1  # number of rows of the block that have a name
    for size in range(2, (len(nodes) - at) // 2 + 1):
        named += bool(nodes[at + size - 1].name)
        if not _may_repeat(nodes[at].name, nodes[at + size].name, named):
            continue
        times = 1
        while _follows(nodes, kinds, links, at, at + size * times, size, times):
            times += 1
        if times > 1 and size * (times - 1) > found[0] * (found[1] - 1):
            found = size, times
    return found


def _may_repeat(first: str, other: str, named: int) -> bool:
    """Return False if two rows cannot begin consecutive blocks with `named` named rows each.

    The numbers of the second block continue those of the first, and are fewer than its named rows.
    This is checked before `_follows` compares all rows: a chain of 1,000 layers has a million
    pairs of rows at which a block could begin.
    """
    apart = _numbers_apart(first, other)
    return apart is not None and 0 < apart[1] - int(apart[0][0]) < named


def _follows(
    nodes: Sequence[FlowNode],
    kinds: Sequence[_Kind],
    links: set[tuple[int, int]],
    first: int,
    other: int,
    size: int,
    times: int,
) -> bool:
    """Return True if the rows from `other` on are the next repetition of a block.

    Args:
        nodes: the nodes of the diagram, one per row.
        kinds: a key for each row. Rows with equal keys may be drawn as one.
        links: (row of the source, row of the user) of each link.
        first: first row of the first block.
        other: first row of the block to compare.
        size: number of rows of a block.
        times: number of repetitions found before `other`.
    """
    if [*kinds[first : first + size]] != [*kinds[other : other + size]]:
        return False
    pairs = [*zip(nodes[first : first + size], nodes[other : other + size], strict=True)]
    apart = [_numbers_apart(one.name, two.name) for one, two in pairs if one.name]
    counts = {(int(number[0]), end) for number, end in filter(None, apart)}
    begins = sorted(begin for begin, _ in counts)
    # The modules of a block have one number, or consecutive ones, such as "0" for the attention and
    # "1" for the feed-forward.
    if None in apart or not counts or begins[-1] - begins[0] != len(begins) - 1:
        return False
    if len(apart) == len(begins):
        return False  # layers of one row are drawn separately, to show their gradients by depth
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
    """Find the number in which two paths differ.

    Returns:
        The match in `first`, and the number in `last`; None unless exactly one number differs.
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
    """Return one node for the corresponding nodes of all blocks."""
    first, last = nodes[0], nodes[-1]
    if first is last:
        return first
    return first._replace(
        name=_range_name(first.name, last.name),
        parameters=tuple([each for node in nodes for each in node.parameters]),
        times=len(nodes),
        last_norm=last.norm,
    )


class Track(NamedTuple):
    """The route of a result's link: its lane at each row, and the rows that use the result."""

    source: int  # row of the node that computes the result
    lanes: dict[int, int]  # row -> lane of the link at that row
    uses: tuple[int, ...]  # rows that use the result


def tracks(rows: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[Track]]:
    """Return the lane of each row, and the track of each result that a later row uses.

    Args:
        rows: number of rows.
        links: (row of the source, row of the user) of each link.

    >>> tracks(4, [(0, 1), (1, 2), (0, 2), (2, 3)])[0]
    [0, 0, 0, 0]
    """
    uses: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        if source < target:
            uses[source].append(target)
    live: dict[int, int] = {}  # row of the source -> current lane of the link
    made = {source: Track(source, {}, tuple(sorted(set(uses[source])))) for source in uses}
    places = []
    for row in range(rows):
        read = sorted(s for s in live if row in made[s].uses)
        ending = [s for s in read if made[s].uses[-1] == row]
        lane = min([live[s] for s in read], default=None)
        for source in ending:
            del live[source]
        if lane is None:
            lane = _free(live.values())
        for source, other in live.items():
            if other == lane:  # the link passes this row, and continues to a later user
                live[source] = _free([*live.values(), lane], lane)
        places.append(lane)
        if uses.get(row):
            live[row] = lane
        for source, where in live.items():
            made[source].lanes[row] = where
    return places, [track for track in made.values() if track.uses]


def _free(taken: Iterable[int], above: int = -1) -> int:
    """Return the first lane to the right of lane `above` that is not in `taken`."""
    used = set(taken)
    lane = above + 1
    while lane in used:
        lane += 1
    return lane
