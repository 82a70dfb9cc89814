"""Join the graphs of several backward passes into one graph, in which each has a title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from .collective import Collective, with_times
from .graph import Graph, Names, graph_of
from .ids import shift_ids
from .nodes import Node
from .text import listing, shorten
from .training import Training
from .values import Transfer, Untracked

# Maximum number of outputs that a title names, and of characters of a name or a source line.
_MAX_NAMES, _MAX_NAME = 2, 40
# Where a graph is in the joined graph: (number added to its node ids, positions of its transfers).
Places = tuple[int, Sequence[int]]


def join_graphs(graphs: Sequence[Graph], titles: Sequence[str]) -> tuple[Graph, list[Places]]:
    """Return one graph that contains `graphs`, and the position of each of them in it.

    Values on the whole recording, which every graph contains, are kept once. `Graph.step` is that
    of the last graph, whose backward pass runs after the others.

    >>> one = Graph((Node(0, "MulBackward0", (None,)),), outputs=((0, 0),))
    >>> whole, _ = join_graphs([one, one], ["first", "second"])
    >>> whole.outputs, whole.segments
    (((0, 0), (1, 0)), ((0, 'first'), (1, 'second')))
    """
    transfers: list[Transfer] = []
    # (transfer without the fields that differ between the graphs, number of equal ones before it in
    # the same graph) -> position
    known: dict[tuple[Transfer, int], int] = {}
    collectives: list[Collective] = []
    places: list[Places] = []
    shifted: list[Graph] = []
    by = ran = 0  # number of nodes in the graphs so far, and of nodes that backward ran
    for graph in graphs:
        own = shift_ids(graph, by)
        shifted.append(replace(own, nodes=tuple([_shift_order(node, ran) for node in own.nodes])))
        at: list[int] = []
        equal: Counter[Transfer] = Counter()
        for transfer in own.transfers:
            copy = replace(transfer, node=None, after_backward=False)
            key = copy, equal[copy]
            equal[copy] += 1
            if key not in known:
                known[key] = len(transfers)
                transfers.append(transfer)
            at.append(known[key])
            before = transfers[at[-1]].node
            transfers[at[-1]] = transfer if before is None else replace(transfer, node=before)
        places.append((by, at))
        collectives = _merge_collectives(collectives, own.collectives)
        by += len(graph.nodes)
        ran += 1 + max([node.order for node in graph.nodes if node.order is not None], default=-1)
    last = shifted[-1]
    whole = Graph(
        tuple(chain.from_iterable(graph.nodes for graph in shifted)),
        tuple(chain.from_iterable(graph.edges for graph in shifted)),
        tuple(chain.from_iterable(graph.outputs for graph in shifted)),
        tuple(transfers),
        tuple([p for g in shifted for p in g.parameters if p.node is not None or g is last]),
        tuple(dict.fromkeys(cut for graph in shifted for cut in graph.cuts)),
        next((graph.failure for graph in reversed(shifted) if graph.failure is not None), None),
        last.step,
        tuple(dict.fromkeys(event for graph in shifted for event in graph.events)),
        tuple((start, title) for (start, _), title in zip(places, titles, strict=True)),
        tuple({row.path: row for graph in graphs for row in graph.modules}.values()),
        tuple(collectives),
        _join_untracked(shifted),
    )
    return whole, places


def _join_untracked(graphs: Sequence[Graph]) -> tuple[Untracked, ...]:
    """Return the `Graph.untracked` of all graphs; an entry that several graphs have occurs once."""
    found: dict[Untracked, int] = {}  # entry with `targets` removed -> position
    targets: list[dict[int, None]] = []
    for graph in graphs:
        places: list[int] = []
        for each in graph.untracked:
            inputs = tuple(places[position] for position in each.inputs)
            key = replace(each, inputs=inputs, targets=())
            place = found.setdefault(key, len(found))
            if place == len(targets):
                targets.append({})
            targets[place].update(dict.fromkeys(each.targets))
            places.append(place)
    pairs = zip(found, targets, strict=True)
    return tuple(replace(each, targets=tuple(nodes)) for each, nodes in pairs)


def _merge_collectives(known: list[Collective], more: Sequence[Collective]) -> list[Collective]:
    """Return the collectives of two graphs.

    Two graphs of a recording list the same collectives in the same order, and each graph gives the
    nodes of only those that ran in it. Such lists are merged. Collectives of different recordings
    are concatenated.
    """
    if list(map(_without_node, known)) != list(map(_without_node, more)):
        return [*known, *more]
    pairs = zip(known, more, strict=True)
    return [
        with_times([new, old] if _belongs_to_segment(new) else [old, new]) for old, new in pairs
    ]


def _without_node(collective: Collective) -> Collective:
    return replace(collective, node=None, own=False)


def _belongs_to_segment(collective: Collective) -> bool:
    """Return True if the collective belongs to the graph that lists it."""
    return collective.own or collective.node is not None


def _shift_order(node: Node, ran: int) -> Node:
    """Return the node with `order` increased by `ran`, the nodes that earlier backwards ran."""
    return node if node.order is None or not ran else node._replace(order=node.order + ran)


def one_graph(
    value: Any, *inputs: Any, names: Names = None
) -> tuple[Graph, dict[int, Places] | None]:
    """Return the graph to draw for `value`, and the positions of the joined graphs in it.

    The backward passes of a recording are joined into one graph. If several passes began at the
    same output and line, as in a loop, only the last is kept. A pass that a later pass continues is
    part of the later pass's graph. Of a `Training`, the last step is used.

    Args:
        value, inputs, names: as in `graph_of`.

    Returns:
        The graph, and index of a backward pass in the recording -> its position in the graph. The
        second is None if `value` is a single graph.

    Raises:
        TypeError, ValueError: as `graph_of`.
    """
    value = value.last if isinstance(value, Training) else value
    graphs: Any = () if inputs or isinstance(value, Graph) else getattr(value, "graphs", ())
    several = isinstance(graphs, list) and all(isinstance(graph, Graph) for graph in graphs)
    if not several or len(graphs) < 2:
        return graph_of(value, *inputs, names=names), None
    titles = [_title(graph) for graph in graphs]
    outer = {title: at for at, title in enumerate(titles) if not graphs[at].step.is_inner_step}
    last = sorted(outer.values())
    if len(last) == 1:
        return graphs[-1], {len(graphs) - 1: (0, range(len(graphs[-1].transfers)))}
    whole, places = join_graphs(
        [graphs[at] for at in last], [_numbered_title(titles, at) for at in last]
    )
    return whole, dict(zip(last, places, strict=True))


def _title(graph: Graph) -> str:
    """Return the title of a graph: its outputs, and the line that created the first output."""
    ends = [graph.nodes[node] for node, _ in graph.outputs]
    names = dict.fromkeys(shorten(node.label or node.title, _MAX_NAME) for node in ends)
    line = shorten(ends[0].line, _MAX_NAME) if ends else ""
    listed = listing(names, _MAX_NAMES, last=", ")
    return " · ".join(filter(None, (listed, line))) or "no output"


def _numbered_title(titles: Sequence[str], at: int) -> str:
    """Return the title at index `at`, with the number of graphs that have the same title."""
    count = titles.count(titles[at])
    return f"{titles[at]} · the last of {count:,}" if count > 1 else titles[at]
