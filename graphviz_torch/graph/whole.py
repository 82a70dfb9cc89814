"""A recording as one graph: the graphs of its step side by side, each a part under its title.

The package hands in who judges it: nothing here knows a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from .argument import Names, graph_of
from .collective import Collective
from .graph import Graph
from .nodes import Edge, Node
from .text import listing, shortened
from .values import Cause, Cut, Event, Failure, Finding, Operand, Step, Transfer

_MOST_NAMES, _LONGEST = 2, 40  # outputs in a title, and characters of each and of the line
# Of a graph in a whole: what is added to its ids, and where its transfers came to be.
Places = tuple[int, Sequence[int]]
# What to mark: findings, "auto" for those of `find`, or None for none.
FindingsLike = Iterable[Finding] | Literal["auto"] | None
# What is wrong in a recording or a Graph.
Judge = Callable[[Any], Iterable[Finding]]


def _no_judge(value: Any) -> Iterable[Finding]:
    return ()


_judge: Judge = _no_judge


def judge_with(judge: Judge) -> None:
    """From now on `judge` says what is wrong where findings are "auto"."""
    global _judge
    _judge = judge


def findings_of(value: Any, findings: FindingsLike = "auto") -> tuple[Finding, ...]:
    """The findings given, or where they are "auto" those of `value`.

    A recording and a Graph are judged. Of anything else, such as a difference, there are none.

    >>> findings_of(Graph(()), None)
    ()
    """
    if isinstance(findings, str):
        if findings != "auto":
            raise ValueError(
                f'findings={findings!r}: pass what `find` returned, "auto" for that, or None.'
            )
        judged = isinstance(value, Graph) or isinstance(getattr(value, "graphs", None), list)
        findings = _judge(value) if judged else ()
    return tuple(findings or ())


def whole_of(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """What is drawn of `value`, and the findings with the ids of its nodes.

    That is its graph, as `graph_of` reads it. A recording of several backwards is one graph of
    several parts: of the backwards that began at the same output and line, such as those of a loop,
    the last one.

    Args:
        value, inputs, names: as in `graph_of`.
        findings: what `find` says of `value`; "auto" asks it.

    Raises:
        TypeError, ValueError: as `graph_of`.
    """
    graphs: Any = () if inputs or isinstance(value, Graph) else getattr(value, "graphs", ())
    several = isinstance(graphs, list) and all(isinstance(graph, Graph) for graph in graphs)
    if not several or len(graphs) < 2:
        graph = graph_of(value, *inputs, names=names)
        return graph, findings_of(graph, findings)
    titles = [_title(graph) for graph in graphs]
    last = sorted({title: at for at, title in enumerate(titles)}.values())
    places: list[Places] = [(0, range(len(graphs[-1].transfers)))]
    whole = graphs[-1]
    if len(last) > 1:
        whole, places = joined([graphs[at] for at in last], [_counted(titles, at) for at in last])
    moves = dict(zip(last, places, strict=True))
    judged = findings_of(value, findings)
    return whole, tuple([_moved(finding, moves, len(graphs) - 1) for finding in judged])


def joined(graphs: Sequence[Graph], titles: Sequence[str]) -> tuple[Graph, list[Places]]:
    """Graphs as the parts of one, and where the nodes and transfers of each are in it.

    What belongs to a recording as a whole, and stands in each of its graphs, stands there once. The
    step is that of the last graph, and its backward runs after those before.

    >>> one = Graph((Node(0, "MulBackward0", (None,)),), outputs=((0, 0),))
    >>> whole, _ = joined([one, one], ["first", "second"])
    >>> whole.outputs, whole.parts
    (((0, 0), (1, 0)), ((0, 'first'), (1, 'second')))
    """
    nodes: list[Node] = []
    edges: list[Edge] = []
    outputs: list[tuple[int, int]] = []
    transfers: list[Transfer] = []
    known: dict[Transfer, int] = {}  # without its node -> where it is
    collectives: list[Collective] = []
    cuts: dict[Cut, None] = {}
    events: dict[Event, None] = {}
    failure: Failure | None = None
    step = Step()
    parts: list[tuple[int, str]] = []
    places: list[Places] = []
    ran = 0  # nodes, by the backwards before
    for graph, title in zip(graphs, titles, strict=True):
        by = len(nodes)
        parts.append((by, title))
        nodes += [_node(node, by, ran) for node in graph.nodes]
        ran += 1 + max([node.order for node in graph.nodes if node.order is not None], default=-1)
        edges += [
            edge._replace(source=edge.source + by, target=edge.target + by) for edge in graph.edges
        ]
        outputs += [(node + by, output_nr) for node, output_nr in graph.outputs]
        at: list[int] = []
        for transfer in graph.transfers:
            copy = replace(transfer, node=None)
            if copy not in known:
                known[copy] = len(transfers)
                transfers.append(copy)
            at.append(known[copy])
            if transfer.node is not None:
                transfers[at[-1]] = replace(transfer, node=transfer.node + by)
        places.append((by, at))
        collectives = _merged(collectives, graph.collectives, by)
        cuts |= dict.fromkeys(
            [
                replace(cut, before=_id(cut.before, by), after=_ids(cut.after, by))
                for cut in graph.cuts
            ]
        )
        events |= dict.fromkeys([_event(event, by) for event in graph.events])
        failure = failure if graph.failure is None else _failure(graph.failure, by)
        step = graph.step
        if step.retained is not None:
            retained_graphs = replace(step.retained, node=_id(step.retained.node, by))
            step = replace(step, retained=retained_graphs)
    parameters = [
        replace(parameter, node=_id(parameter.node, by))
        for (by, _), graph in zip(places, graphs, strict=True)
        for parameter in graph.parameters
        if parameter.node is not None or graph is graphs[-1]
    ]
    whole = Graph(
        tuple(nodes),
        tuple(edges),
        tuple(outputs),
        tuple(transfers),
        tuple(parameters),
        tuple(cuts),
        failure,
        step,
        tuple(events),
        tuple(parts),
        tuple({row.path: row for graph in graphs for row in graph.modules}.values()),
        tuple(collectives),
    )
    return whole, places


def _merged(known: list[Collective], more: Sequence[Collective], by: int) -> list[Collective]:
    """The collectives of a recording, each with the node of the part that has it.

    Every part has all of them, in the same order; graphs of other recordings have their own.
    """
    moved = [replace(each, node=_id(each.node, by)) for each in more]
    if [replace(each, node=None) for each in known] != [replace(each, node=None) for each in more]:
        return known + moved
    return [old if new.node is None else new for old, new in zip(known, moved, strict=True)]


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


def _moved(finding: Finding, moves: dict[int, Places], last: int) -> Finding:
    """A finding of a recording, with the ids in the whole; of a graph not drawn it has none."""
    by, transfers = moves.get(finding.steps[-1] if finding.steps else last, (None, ()))
    if by is None:
        return replace(finding, nodes=(), transfers=())
    return replace(
        finding,
        nodes=_ids(finding.nodes, by),
        transfers=tuple([transfers[i] for i in finding.transfers]),
    )


def _id(node: int | None, by: int) -> int | None:
    return None if node is None else node + by


def _ids(nodes: Iterable[int], by: int) -> tuple[int, ...]:
    return tuple([node + by for node in nodes])


def _node(node: Node, by: int, ran: int) -> Node:
    saved = tuple([s._replace(shared_with=_id(s.shared_with, by)) for s in node.saved])
    return node._replace(id=node.id + by, saved=saved, order=_id(node.order, ran))


def _operand(operand: Operand, by: int) -> Operand:
    return replace(operand, node=_id(operand.node, by))


def _event(event: Event, by: int) -> Event:
    operands = tuple([_operand(operand, by) for operand in event.operands])
    return replace(event, nodes=_ids(event.nodes, by), operands=operands)


def _cause(cause: Cause, by: int) -> Cause:
    return replace(cause, nodes=_ids(cause.nodes, by))


def _failure(failure: Failure, by: int) -> Failure:
    return replace(
        failure,
        node=_id(failure.node, by),
        operands=tuple([_operand(operand, by) for operand in failure.operands]),
        modified=failure.modified and _operand(failure.modified, by),
        causes=tuple([_cause(cause, by) for cause in failure.causes]),
    )
