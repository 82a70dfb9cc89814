"""What is wrong, why, and what to try: rules that read graphs.

Only what was recorded is judged: a rule whose values are missing stays silent. Adding a rule is
adding one function to the file of its family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Finding, Graph, GraphLike, graph_of
from .findings import Checked, Findings, merged

# Each family enters its rules in the table; the order here is that of equal severity.
from . import devices, leaves, failures  # isort: skip # noqa: F401
from . import training, paths, cuts, freezing, dropped, losses  # isort: skip # noqa: F401
from . import values, transfers, memory, across  # isort: skip # noqa: F401
from .rule import RULES, Reading, apply
from .values import AGAIN

_SEVERITIES = ("error", "warning", "info")


def find(graph: GraphLike, previous: Sequence[GraphLike] = ()) -> Findings:
    """What is wrong in a recording, or worth knowing: errors first, then warnings, then the rest.

    Each thing is told once, with the backwards at which it holds (`Finding.steps`). Printed, the
    result is a table; where nothing is wrong it says what was checked.

    Args:
        graph: a recording: all its graphs are judged. Or one graph; or a tensor or its trace, which
            knows far less of what went on.
        previous: of one graph, those of the steps before, oldest first, for rules that compare.

    Raises:
        TypeError: if `graph` is not a graph and has none, or `previous` is not a list of those.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta = TensorMeta((3,), "float32", "cpu")
    >>> used = Parameter("body.weight", meta, True, module_called=True, has_grad=True)
    >>> lost = Parameter("head.weight", meta, True, module_called=False, has_grad=False)
    >>> print(find(Graph((), parameters=(used, lost)))[0].message)
    head.weight got no gradient: head was never called.
    """
    before = _graphs(previous, "previous", "find(graph, [previous])")
    graphs = getattr(graph, "graphs", None)
    if not isinstance(graphs, list) or not graphs:
        graphs = [graph_of(graph)]
    found = [(i, f) for i, each in enumerate(graphs) for f in apply("graph", Reading(each))]
    if len(before) + len(graphs) > 1:
        found += [(len(graphs) - 1, f) for f in apply("steps", [*before, *graphs])]
    checked = Checked.of(graphs, sum(entry.reads != "ranks" for entry in RULES))
    return Findings(_sorted(_causes(merged(found, len(graphs)))), checked)


def find_across(graphs: Sequence[GraphLike]) -> list[Finding]:
    """What differs between the graphs of several ranks and must not; `graphs[i]` is rank i's.

    Raises TypeError for anything but a list of graphs or recordings.
    """
    ranks = _graphs(graphs, "graphs", "find_across([graph, graph, ...])")
    return _sorted(apply("ranks", ranks))


def rules() -> tuple[tuple[str, str], ...]:
    """Every rule: its id, and the sentence that says what it finds."""
    return tuple((rule.id, rule.sentence) for rule in RULES)


def _causes(found: list[Finding]) -> list[Finding]:
    """Without what only says that an earlier step's finding goes on."""
    told = {f.rule for f in found if f.cause != AGAIN}
    return [f for f in found if f.cause != AGAIN or f.rule not in told]


def _graphs(value: Sequence[GraphLike], name: str, example: str) -> list[Graph]:
    if not isinstance(value, Sequence):
        raise TypeError(
            f"{name} is a {type(value).__name__}, not a list of graphs: pass {example}."
        )
    return [graph_of(each) for each in value]


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    # What says exactly why a recording ended comes before that it did.
    return sorted(found, key=lambda f: (_SEVERITIES.index(f.severity), f.rule == "failed"))
