"""What is wrong, why, and what to try: rules that read graphs.

Only what was recorded is judged: a rule whose values are missing stays silent. Adding a rule is
adding one function to the file of its family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Finding, Graph, GraphLike, graph_of

# Each family enters its rules in the table; the order here is that of equal severity.
from . import devices, failures, paths, dropped, losses, values, transfers, memory, across  # isort: skip # noqa: F401
from .rule import RULES, Reading, apply

_SEVERITIES = ("error", "warning", "info")


def find(graph: GraphLike, previous: Sequence[GraphLike] = ()) -> list[Finding]:
    """What is wrong in a graph, or worth knowing: errors first, then warnings, then the rest.

    Args:
        graph: a recording or its graph; or a tensor or its trace, which knows far less of what
            went on.
        previous: the graphs of the steps before, oldest first, for rules that compare steps.

    Raises:
        TypeError: if `graph` is not a graph and has none, or `previous` is not a list of those.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta = TensorMeta((3,), "float32", "cpu")
    >>> used = Parameter("body.weight", meta, True, module_called=True, has_grad=True)
    >>> lost = Parameter("head.weight", meta, True, module_called=False, has_grad=False)
    >>> print(find(Graph((), parameters=(used, lost)))[0].message)
    head.weight got no gradient: head was never called.
    """
    last = graph_of(graph)
    steps = [*_graphs(previous, "previous", "find(graph, [previous])"), last]
    found = list(apply("graph", Reading(last)))
    if len(steps) > 1:
        found.extend(apply("steps", steps))
    return _sorted(found)


def find_across(graphs: Sequence[GraphLike]) -> list[Finding]:
    """What differs between the graphs of several ranks and must not; `graphs[i]` is rank i's.

    Raises TypeError for anything but a list of graphs or recordings.
    """
    ranks = _graphs(graphs, "graphs", "find_across([graph, graph, ...])")
    return _sorted(apply("ranks", ranks))


def rules() -> tuple[tuple[str, str], ...]:
    """Every rule: its id, and the sentence that says what it finds."""
    return tuple((rule.id, rule.sentence) for rule in RULES)


def _graphs(value: Sequence[GraphLike], name: str, example: str) -> list[Graph]:
    if not isinstance(value, Sequence):
        raise TypeError(
            f"{name} is a {type(value).__name__}, not a list of graphs: pass {example}."
        )
    return [graph_of(each) for each in value]


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity))
