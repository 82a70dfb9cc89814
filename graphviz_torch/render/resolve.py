"""Convert the target of a picture into one graph and its findings.

A recording of several backward passes becomes one graph with several segments. Its findings are
changed to use the node ids of that graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..graph import Finding, Graph, Names, Training
from ..graph.ids import shift_ids
from ..graph.training.join import Places, one_graph

# Findings to mark: a list, "auto" for those that `find` reports, or None for no findings.
FindingsLike = Iterable[Finding] | Literal["auto"] | None


def resolve_findings(value: Any, findings: FindingsLike = "auto") -> tuple[Finding, ...]:
    """Return `findings`, or the findings that `find` reports for `value` if `findings` is "auto".

    `find` checks a recording, a Graph, or the last step of a `Training`. Any other value, such as a
    diff, has no findings.

    >>> resolve_findings(Graph(()), None)
    ()
    """
    value = value.last if isinstance(value, Training) else value
    if isinstance(findings, str):
        if findings != "auto":
            raise ValueError(
                f'findings={findings!r}: pass a result of `find`, "auto" to call `find`, or None.'
            )
        judged = isinstance(value, Graph) or isinstance(getattr(value, "graphs", None), list)
        findings = _find(value) if judged else ()
    return tuple(findings or ())


def _find(value: Any) -> Sequence[Finding]:
    """Return the findings of `value`, except the one that no backward ran, which a picture
    shows.
    """
    from ..findings import find  # imported when needed, because the rules take long to load
    from ..findings.rules.silence import FORWARD_ALONE

    found = find(value)
    return [each for each in found if each.severity != "info" or each.cause != FORWARD_ALONE]


def graph_and_findings(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """Return the graph to draw for `value`, and the findings with the node ids of that graph.

    Several backward passes of a recording become one graph with several segments. Of the passes
    that began at the same output and line, as in a loop, only the last is drawn. For a training the
    last step is drawn.

    Args:
        value, inputs, names: as in `graph_of`.
        findings: the result of `find`, "auto" to call `find`, or None.

    Raises:
        TypeError, ValueError: as `graph_of`.
    """
    graph, moves = one_graph(value, *inputs, names=names)
    if moves is None:
        return graph, resolve_findings(graph, findings)
    last = max(moves)
    return graph, tuple(
        [_renumber(each, moves, last) for each in resolve_findings(value, findings)]
    )


def graph_and_marks(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """Return the graph and the findings for a still picture.

    If `findings` is "auto", findings of severity "info" lose their nodes: a still picture writes
    their message but marks no node. Findings in a list keep their nodes.
    """
    graph, found = graph_and_findings(value, *inputs, findings=findings, names=names)
    if isinstance(findings, str):
        found = tuple([replace(f, nodes=()) if f.severity == "info" else f for f in found])
    return graph, found


def _renumber(finding: Finding, moves: dict[int, Places], last: int) -> Finding:
    """Return a finding with node ids of the joined graph; if its graph is not drawn, with no
    nodes.
    """
    by, transfers = moves.get(finding.steps[-1] if finding.steps else last, (None, ()))
    if by is None:
        return replace(finding, nodes=(), transfers=())
    places = tuple([transfers[i] for i in finding.transfers])
    return shift_ids(finding, by, transfers=places)
