"""What is drawn of a recording or a graph, and what is wrong in it: the two that a picture needs.

A recording of several backwards is drawn as one graph, the findings with its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ...graph import Finding, Graph, Names, Training
from ...graph.ids import moved
from ...graph.training.join import Places, one_graph

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
        findings = _find(value) if judged else ()
    return tuple(findings or ())


def _find(value: Any) -> Sequence[Finding]:
    """Return the findings of `value`, without the note that no backward ran: a picture shows it."""
    from ...findings import find  # the rules are loaded where they are needed
    from ...findings.rules.silence import FORWARD_ALONE

    found = find(value)
    return [each for each in found if each.severity != "info" or each.cause != FORWARD_ALONE]


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
    graph, moves = one_graph(value, *inputs, names=names)
    if moves is None:
        return graph, findings_of(graph, findings)
    last = max(moves)
    return graph, tuple([_moved(each, moves, last) for each in findings_of(value, findings)])


def picture_of(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """The same for a still picture: of what `find` says, mere information marks no node.

    Its sentence tells all there is to it. Of findings that are given, each is marked.
    """
    graph, found = whole_of(value, *inputs, findings=findings, names=names)
    if isinstance(findings, str):
        found = tuple([replace(f, nodes=()) if f.severity == "info" else f for f in found])
    return graph, found


def _moved(finding: Finding, moves: dict[int, Places], last: int) -> Finding:
    """A finding of a recording, with the ids in the whole; of a graph not drawn it has none."""
    by, transfers = moves.get(finding.steps[-1] if finding.steps else last, (None, ()))
    if by is None:
        return replace(finding, nodes=(), transfers=())
    places = tuple([transfers[i] for i in finding.transfers])
    return moved(finding, by, transfers=places)
