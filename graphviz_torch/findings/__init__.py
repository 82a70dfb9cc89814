"""What is wrong, why, and what to try: rules that read graphs.

Only what was recorded is judged: a rule whose values are missing stays silent. Adding a rule is
adding one function to the file of its family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Finding, Graph, expect_graph

# Each family enters its rules in the table; the order here is that of equal severity.
from . import devices, failures, paths, dropped, losses, values, transfers, memory, across  # isort: skip # noqa: F401
from .rule import RULES, Reading, apply

_SEVERITIES = ("error", "warning", "info")


def find(graph: Graph, previous: Sequence[Graph] = ()) -> list[Finding]:
    """What is wrong in a graph, or worth knowing: errors first, then warnings, then the rest.

    Args:
        graph: from `record`, or from `trace` (which knows far less of what went on).
        previous: the graphs of the steps before, oldest first, for rules that compare steps.

    Raises:
        TypeError: for what is no graph, or no list of graphs.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta = TensorMeta((3,), "float32", "cpu")
    >>> used = Parameter("body.weight", meta, True, called=True, has_grad=True)
    >>> lost = Parameter("head.weight", meta, True, called=False, has_grad=False)
    >>> print(find(Graph((), parameters=(used, lost)))[0].message)
    head.weight got no gradient: head was never called.
    """
    expect_graph(graph)
    _expect_graphs(previous, "previous", "find(graph, [previous])")
    found = list(apply("graph", Reading(graph)))
    if previous:
        found.extend(apply("steps", [*previous, graph]))
    return _sorted(found)


def find_across(graphs: Sequence[Graph]) -> list[Finding]:
    """What differs between the graphs of several ranks and must not; `graphs[i]` is rank i's.

    Raises TypeError for what is no list of graphs.
    """
    _expect_graphs(graphs, "graphs", "find_across([graph, graph, ...])")
    return _sorted(apply("ranks", graphs))


def rules() -> tuple[tuple[str, str], ...]:
    """Every rule: its id, and the sentence that says what it finds."""
    return tuple((rule.id, rule.sentence) for rule in RULES)


def _expect_graphs(value: object, name: str, example: str) -> None:
    if not isinstance(value, Sequence):
        raise TypeError(
            f"{name} is a {type(value).__name__}, not a list of graphs: pass {example}."
        )
    for graph in value:
        expect_graph(graph)


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity))
