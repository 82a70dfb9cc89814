"""Graphs side by side as one: each a part under its title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ..argument import Names, graph_of
from ..collective import Collective, with_times
from ..graph import Graph
from ..ids import moved
from ..nodes import Node
from ..text import listing, shortened
from ..values import Transfer
from .training import Training

_MOST_NAMES, _LONGEST = 2, 40  # outputs in a title, and characters of each and of the line
# Of a graph in a whole: what is added to its ids, and where its transfers came to be.
Places = tuple[int, Sequence[int]]


def joined(graphs: Sequence[Graph], titles: Sequence[str]) -> tuple[Graph, list[Places]]:
    """Graphs as the parts of one, and where the nodes and transfers of each are in it.

    What belongs to a recording as a whole, and stands in each of its graphs, stands there once. The
    step is that of the last graph, and its backward runs after those before.

    >>> one = Graph((Node(0, "MulBackward0", (None,)),), outputs=((0, 0),))
    >>> whole, _ = joined([one, one], ["first", "second"])
    >>> whole.outputs, whole.parts
    (((0, 0), (1, 0)), ((0, 'first'), (1, 'second')))
    """
    transfers: list[Transfer] = []
    known: dict[Transfer, int] = {}  # without its node -> where it is
    collectives: list[Collective] = []
    places: list[Places] = []
    shifted: list[Graph] = []
    by = ran = 0  # nodes, and those that the backwards before ran
    for graph in graphs:
        own = moved(graph, by)
        shifted.append(replace(own, nodes=tuple([_after(node, ran) for node in own.nodes])))
        at: list[int] = []
        for transfer in own.transfers:
            copy = replace(transfer, node=None)
            if copy not in known:
                known[copy] = len(transfers)
                transfers.append(copy)
            at.append(known[copy])
            if transfer.node is not None:
                transfers[at[-1]] = transfer
        places.append((by, at))
        collectives = _merged(collectives, own.collectives)
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
    )
    return whole, places


def _merged(known: list[Collective], more: Sequence[Collective]) -> list[Collective]:
    """The collectives of a recording, each with the node of the part that has it.

    Every part has all of them, in the same order; graphs of other recordings have their own.
    """
    if list(map(_of_no_part, known)) != list(map(_of_no_part, more)):
        return [*known, *more]
    pairs = zip(known, more, strict=True)
    return [with_times([new, old] if _has(new) else [old, new]) for old, new in pairs]


def _of_no_part(collective: Collective) -> Collective:
    return replace(collective, node=None, own=False)


def _has(collective: Collective) -> bool:
    """Is it of the part that lists it."""
    return collective.own or collective.node is not None


def _after(node: Node, ran: int) -> Node:
    """A node whose backward runs after so many others."""
    return node if node.order is None or not ran else node._replace(order=node.order + ran)


def one_graph(
    value: Any, *inputs: Any, names: Names = None
) -> tuple[Graph, dict[int, Places] | None]:
    """What is drawn of `value`, and where the nodes and transfers of its graphs are in that.

    That is its graph, as `graph_of` reads it, and None. A recording of several backwards is one
    graph of several parts: of the backwards that began at the same output and line, such as those
    of a loop, the last one; one that a later backward goes on with is in the graph of that. Of a
    training it is the last step.

    Args:
        value, inputs, names: as in `graph_of`.

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
    whole, places = joined([graphs[at] for at in last], [_counted(titles, at) for at in last])
    return whole, dict(zip(last, places, strict=True))


def _title(graph: Graph) -> str:
    """What a graph is called: its outputs, and the line that made the first."""
    ends = [graph.nodes[node] for node, _ in graph.outputs]
    names = dict.fromkeys(shortened(node.label or node.title, _LONGEST) for node in ends)
    line = shortened(ends[0].line, _LONGEST) if ends else ""
    listed = listing(names, _MOST_NAMES, last=", ")
    return " · ".join(filter(None, (listed, line))) or "no output"


def _counted(titles: Sequence[str], at: int) -> str:
    """A title, and of how many graphs with this title it is the last."""
    count = titles.count(titles[at])
    return f"{titles[at]} · the last of {count:,}" if count > 1 else titles[at]
