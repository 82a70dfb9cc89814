"""Find the origins of tensors without a gradient, and list them as `Graph.untracked`.

While the program runs, `UntrackedCalls` notes which `Producer` each tensor comes from, and which
calls use the tensor. `untracked_rows` turns these notes into the rows of one graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, Final, Literal

from ..graph import Graph, TensorMeta, Untracked
from ..graph.immutable import NamedTuple
from ..internals.frames import CodePosition
from ..tracing.nodes import sources_of
from .resolver import Resolver

_VIEW_NODES: Final = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "Transpose", "Permute")
_VIEW_NAMES = """
    getitem view view_as reshape reshape_as permute transpose swapaxes movedim t T mT contiguous
    expand expand_as unsqueeze squeeze flatten unflatten ravel select narrow split chunk unbind
    tensor_split repeat repeat_interleave flip roll to float double half bfloat16 long int short
    bool type type_as cpu cuda clone detach data pin_memory
"""
# Names of functions whose result belongs to the same entry as the first operand.
VIEW_FUNCTIONS: Final = frozenset(_VIEW_NAMES.split())
_MAX_VIEWS = 4  # number of views in front of a call that are followed to their base


class Producer:
    """The origin of a tensor: an autograd node, or an entry (data or a call without a node)."""

    __slots__ = (
        "copies", "depth", "is_named", "kind", "label", "metas", "module", "numbers", "place",
        "reason", "serial", "sources", "switch",
    )  # fmt: skip

    def __init__(self, kind: Literal["data", "module", "function", "node"], serial: int) -> None:
        self.kind = kind
        self.serial = serial
        self.label = ""
        self.is_named = False  # True if `label` is the name of an argument of a forward
        self.module = ""
        self.place: CodePosition | None = None
        self.reason = ""
        self.switch: CodePosition | None = None  # the line that disabled gradients
        self.metas: tuple[TensorMeta, ...] = ()  # () for copied data until the first use
        self.copies: dict[int, None] = {}  # data numbers of the copies that this data consists of
        self.sources: tuple[Producer, ...] = ()
        self.depth = 0
        # For kind "node": sequence numbers of the node and, if it is a view, of the nodes before.
        self.numbers: tuple[int, ...] = ()


class TensorUse(NamedTuple):
    """A use of a followed tensor by a call, whose nodes have start <= sequence number < end."""

    start: int
    end: int
    entry: Producer
    tensor: TensorMeta


def untracked_rows(
    graph: Graph,
    resolver: Resolver,
    uses: Sequence[TensorUse],
    values: Mapping[int, Any],
    classes: Mapping[str, str],
) -> tuple[Untracked, ...]:
    """Return `Graph.untracked`: the producers from which nodes of a graph were computed.

    Args:
        graph: the graph of one backward, which has the node columns only.
        resolver: finds the node ids and texts of this graph.
        uses: the uses of followed tensors, in order.
        values: for small data, the values by `Producer.serial`.
        classes: the classes of modules by path.
    """
    backward = resolver.backward
    targets: dict[Producer, dict[int, None]] = {}
    first = min([number for number in backward.numbers if number >= 0], default=0)
    last = max(backward.numbers, default=0)
    made = []
    for use in uses[bisect_left(uses, first, key=lambda use: use.end) :]:
        if use.start > last:
            break
        made.append((use, backward.node_ids(range(use.start, use.end))))
    several = {node for _, nodes in made if len(nodes) > 1 for node in nodes}
    fed: dict[int, set[int]] = {node: set() for node in several}
    for edge in graph.edges if several else ():
        if edge.target in several:
            fed[edge.target].add(edge.input_nr)
    for use, nodes in made:
        if nodes:
            node = _node_using(graph, nodes, use.tensor, fed)
            targets.setdefault(use.entry, {})[node] = None
    entries = sorted(_with_sources(targets), key=lambda entry: entry.serial)
    entries = [entry for entry in entries if entry.kind != "node"]
    places = {entry: i for i, entry in enumerate(entries)}
    rows = []
    for entry in entries:
        cut = [resolver.nodes(one.numbers)[:1] for one in entry.sources]
        kind: Any = entry.kind
        reason = entry.reason
        if entry.switch is not None:
            reason += f" at {resolver.line(entry.switch)}"
        rows.append(
            Untracked(
                kind,
                entry.label,
                entry.metas,
                reason,
                entry.module,
                classes.get(entry.module, "") if kind == "module" else "",
                resolver.line(entry.place),
                tuple(dict.fromkeys(places[one] for one in entry.sources if one in places)),
                tuple(dict.fromkeys(chain.from_iterable(cut))),
                tuple(targets.get(entry, ())),
                values.get(entry.serial),
                tuple(entry.copies),
            )
        )
    return tuple(rows)


def numbers_before(fn: Any) -> tuple[int, ...]:
    """Return the sequence numbers of a node and, if it is a view, of the nodes before it.

    Backward does not run a view that only calls without a node read. The graph then has only the
    nodes before the view.
    """
    found = [int(fn._sequence_nr())]
    while fn.name().startswith(_VIEW_NODES) and len(found) < _MAX_VIEWS:
        before = sources_of(fn)
        if len(before) != 1:
            break
        fn = before[0]
        found.append(int(fn._sequence_nr()))
    return tuple(found)


def _with_sources(entries: Iterable[Producer]) -> dict[Producer, None]:
    """Return entries (data and calls without an autograd node), and all that they depend on."""
    found = dict.fromkeys(entries)
    waiting = [*found]
    for entry in waiting:
        for source in entry.sources:
            if source not in found:
                found[source] = None
                waiting.append(source)
    return found


def _node_using(
    graph: Graph, nodes: Sequence[int], tensor: TensorMeta, fed: Mapping[int, set[int]]
) -> int:
    """Return the node that uses a tensor, among the nodes that one call created.

    This is the node that saved the tensor, or that saved a target with as many elements: a loss
    reshapes its target. If there is none, it is a node with an input that has no edge, or else the
    last node.

    Args:
        graph: the graph.
        nodes: ids of the nodes that the call created.
        tensor: metadata of the tensor.
        fed: for each node, the numbers of its inputs that have an edge.
    """
    for node in nodes if len(nodes) > 1 else ():
        saved = graph.nodes[node].saved
        if any(each.tensor == tensor and each.kind == "input" for each in saved):
            return node
    for node in nodes if len(nodes) > 1 else ():
        targets = [each.tensor for each in graph.nodes[node].saved if each.name == "target"]
        if any((t.dtype, prod(t.shape)) == (tensor.dtype, prod(tensor.shape)) for t in targets):
            return node
    for node in nodes if len(nodes) > 1 else ():
        if fed[node] and max(fed[node]) >= len(fed[node]):
            return node
    return nodes[-1]


def part_text(index: Any) -> str:
    """Return the text of an index that selects a part along a later dimension; "" for others.

    >>> part_text((slice(None), slice(1, None))), part_text((..., slice(None, -1)))
    ('[:, 1:]', '[..., :-1]')
    >>> part_text(slice(8, 16)), part_text((slice(None), 0))
    ('', '')
    """
    return index_text(index) if type(index) is tuple and any(map(_is_part, index[1:])) else ""


def _is_part(one: Any) -> bool:
    return type(one) is slice and not (one.start is None and one.stop is None and one.step is None)


def index_text(index: Any) -> str:
    """Return the text of an index: "[:, 1:]"."""
    return f"[{', '.join(map(_element_text, index if type(index) is tuple else (index,)))}]"


def _element_text(one: Any) -> str:
    if type(one) is slice:
        start, stop = ("" if end is None else _element_text(end) for end in (one.start, one.stop))
        step = "" if one.step is None else f":{_element_text(one.step)}"
        return f"{start}:{stop}{step}"
    if one is ...:
        return "..."
    return str(one) if type(one) is int or one is None else "…"
