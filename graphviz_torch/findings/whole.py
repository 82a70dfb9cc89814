"""What is drawn of a recording or a graph, and what is wrong in it: the two that a picture needs.

A recording of several backwards is drawn as one graph, the findings with its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..graph import Finding, Graph, Names, Training, graph_of
from ..graph.ids import moved
from ..graph.text import listing, shortened
from ..graph.training.whole import Places, joined
from . import find

_MOST_NAMES, _LONGEST = 2, 40  # outputs in a title, and characters of each and of the line
# What to mark: findings, "auto" for those of `find`, or None for none.
FindingsLike = Iterable[Finding] | Literal["auto"] | None


def findings_of(value: Any, findings: FindingsLike = "auto") -> tuple[Finding, ...]:
    """The findings given, or where they are "auto" those of `value`.

    A recording and a Graph are judged, and of a training its last step. Of anything else, such as a
    difference, there are none.

    >>> findings_of(Graph(()), None)
    ()
    """
    value = value.last if isinstance(value, Training) else value
    if isinstance(findings, str):
        if findings != "auto":
            raise ValueError(
                f'findings={findings!r}: pass what `find` returned, "auto" for that, or None.'
            )
        judged = isinstance(value, Graph) or isinstance(getattr(value, "graphs", None), list)
        findings = find(value) if judged else ()
    return tuple(findings or ())


def whole_of(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """What is drawn of `value`, and the findings with the ids of its nodes.

    That is its graph, as `graph_of` reads it. A recording of several backwards is one graph of
    several parts: of the backwards that began at the same output and line, such as those of a loop,
    the last one. Of a training it is the last step.

    Args:
        value, inputs, names: as in `graph_of`.
        findings: what `find` says of `value`; "auto" asks it.

    Raises:
        TypeError, ValueError: as `graph_of`.
    """
    value = value.last if isinstance(value, Training) else value
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
    places = tuple([transfers[i] for i in finding.transfers])
    return moved(finding, by, transfers=places)
