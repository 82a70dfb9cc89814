"""Convert anything that can be drawn into one graph and its findings.

The backward passes of a recording are joined into one graph. The findings of the recording get the
node ids of that graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..graph import Finding, Graph, Names, Training
from ..graph.ids import shift_ids
from ..graph.join import Places, one_graph

# Findings to mark: an iterable of findings, "auto" for those that `find` reports, or None.
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
    """Return the findings of `value`, except the finding that no backward ran.

    A picture without gradients shows this already.
    """
    from ..findings.check import find  # imported when needed, because the rules take long to load
    from ..findings.rules.forwards import FORWARD_ALONE

    found = find(value)
    return [each for each in found if each.severity != "info" or each.cause != FORWARD_ALONE]


def graph_and_findings(
    value: Any, *inputs: Any, findings: FindingsLike = "auto", names: Names = None
) -> tuple[Graph, tuple[Finding, ...]]:
    """Return the graph to draw for `value`, and the findings with the node ids of that graph.

    Several backward passes of a recording are joined into one graph. If several passes began at the
    same output and line, as in a loop, only the last of them is drawn. Of a `Training`, the last
    step is drawn.

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

    If `findings` is "auto", notes (findings of severity "info") are left out, as in a report. Notes
    in a list are marked.
    """
    graph, found = graph_and_findings(value, *inputs, findings=findings, names=names)
    if isinstance(findings, str):
        found = tuple([each for each in found if each.severity != "info"])
    return graph, found


def _renumber(finding: Finding, moves: dict[int, Places], last: int) -> Finding:
    """Return a finding with the node ids of the joined graph.

    A finding about a backward pass that is not drawn gets no nodes.

    Args:
        finding: a finding on a recording.
        moves: index of a backward pass -> position of its nodes and transfers in the joined graph.
        last: index of the last drawn backward pass.
    """
    by, transfers = moves.get(finding.steps[-1] if finding.steps else last, (None, ()))
    if by is None:
        return replace(finding, nodes=(), transfers=())
    places = tuple([transfers[i] for i in finding.transfers])
    return shift_ids(finding, by, transfers=places)
