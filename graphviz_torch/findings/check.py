"""Apply all rules to a recording, a training, or the graphs of several ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..graph import FAILURE_RULES, Finding, Graph, GraphLike, Training, TrainingStep, graph_of
from ..graph.gc import with_gc_disabled
from ..graph.text import shorten, type_text
from ..graph.values import SEVERITIES
from .findings import CheckedCounts, Findings
from .graph_reading import Reading
from .repeated_blocks import one_per_block
from .rule import RULES
from .rules.values import SINCE_EARLIER_BACKWARD
from .run_findings import RunFindings
from .selection import Selection
from .table import apply, rules

_PREVIOUS = 4  # largest number of earlier steps with which a step is compared
_MAX_NOTE_LINE = 400  # number of characters after which `diagnosis` shortens a line


@with_gc_disabled
def find(
    graph: GraphLike | Sequence[GraphLike],
    previous: Sequence[GraphLike] = (),
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
) -> Findings:
    """Report the faults of a recording, sorted by severity: error, warning, info.

    Each fault is reported once, and `Finding.steps` contains the indices of the backwards that have
    it. `print` shows a table of the errors and warnings, and counts the findings of severity info.
    If nothing is found, it shows the numbers of nodes and parameters that were checked.

    Args:
        graph: a recording, a recorded training run, one of its steps, or a graph. A tensor or its
            trace contains less, so fewer rules apply. For a list with one graph per rank, rank 0
            first, only differences between the ranks are reported.
        previous: the graphs or steps that were recorded before `graph`, oldest first, for rules
            that compare steps.
        select: the ids of the rules to report; None: all of them.
        ignore: the ids of rules not to report.

    Raises:
        TypeError: if `graph` is not one of these types, or `previous` is not a list of graphs.
        ValueError: if `select` or `ignore` contains an unknown id, or `previous` is given with a
            list of ranks.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta = TensorMeta((3,), "float32", "cpu")
    >>> used = Parameter("body.weight", meta, True, module_called=True, has_grad=True)
    >>> lost = Parameter("head.weight", meta, True, module_called=False, has_grad=False)
    >>> print(find(Graph((), parameters=(used, lost)))[0].message)
    head.weight got no gradient: head was never called.
    """
    reported = Selection.create(select, ignore)
    if isinstance(graph, Sequence) and not isinstance(graph, str):
        if previous:
            raise ValueError(
                "previous cannot be combined with a list of ranks: call "
                "find(graph, previous) for each rank."
            )
        found = _find_in_ranks(_graphs(graph, "graph", "find([graph, graph, ...])"))
    elif isinstance(graph, Training):
        found = _find_in_steps(graph)
    elif isinstance(graph, Graph) and not previous:
        found = _find_once(graph)
    else:
        found = _find(graph, _graphs(previous, "previous", "find(graph, [previous])"))
    return Findings(filter(reported.includes, found), found.checked)


# id() of a live graph -> the number of rules, and the graph's findings. The key is not the graph,
# because hashing a graph would take as long as finding its faults.
_judged: dict[int, tuple[weakref.ref[Graph], int, Findings]] = {}


def _find_once(graph: Graph) -> Findings:
    """Return the findings of a graph. Graphs are immutable, so the findings are cached."""
    number = id(graph)
    known = _judged.get(number)
    if known is None or known[1] != len(RULES):
        forgotten = weakref.ref(graph, lambda _: _judged.pop(number, None))
        known = _judged[number] = forgotten, len(RULES), _find(graph, [])
    return known[2]


def _find(graph: GraphLike, before: list[Graph]) -> Findings:
    graphs = getattr(graph, "graphs", None)
    if not isinstance(graphs, list) or not graphs:
        graphs = [graph_of(graph)]
    # `Transfer.data` identifies the same data in all steps of one run, not across recordings.
    earlier = before if isinstance(graph, TrainingStep) else ()
    readings = [Reading(each) for each in graphs[:-1]] + [Reading(graphs[-1], tuple(earlier))]
    found = [(i, f) for i, each in enumerate(readings) for f in apply("graph", each)]
    found += [(i, f) for f in apply("end", readings[-1]) for i in range(len(graphs))]
    found += [(i, f) for f in apply("recording", graphs) for i in range(len(graphs))]
    if len(before) + len(graphs) > 1:
        found += [(len(graphs) - 1, f) for f in apply("steps", [*before, *graphs])]
    checked = CheckedCounts.from_graphs(graphs)
    return Findings(
        _most_severe_first(one_per_block(_causes(_without_repeats(found, len(graphs))))), checked
    )


def _find_in_steps(training: Training) -> Findings:
    """Return each finding of a training run once, with the indices of the steps that have it."""
    steps = training.steps
    found = [
        (i, replace(each, steps=()))
        for i, step in enumerate(steps)
        for each in find(step, steps[max(0, i - _PREVIOUS) : i])
    ]
    graphs = [graph for step in steps for graph in step.graphs]
    checked = replace(CheckedCounts.from_graphs(graphs), steps=len(steps), noun="step")
    return Findings(_most_severe_first(_without_repeats(found, len(steps), graphs)), checked)


def _without_repeats(
    found: Iterable[tuple[int, Finding]], count: int, graphs: Iterable[Graph] = ()
) -> list[Finding]:
    """Return each finding once, with the indices of its steps among `count` steps.

    Args:
        found: (index of the step, finding).
        count: number of steps.
        graphs: the graphs of all steps, which show the modules that were called.
    """
    distinct = RunFindings()
    distinct.add(0, (), graphs)
    for step, each in found:
        distinct.add(step, [each])
    return distinct.merge(count)


def diagnosis(graph: Graph) -> str:
    """Return the cause, line and advice for the exception that ended a recording; "" for none.

    The text has at most three lines. A rule that reports the exact cause is preferred to the rule
    `exception`. If only `exception` applies, and can only repeat the exception's message, "" is
    returned.

    >>> from graphviz_torch.graph import Failure
    >>> text = diagnosis(Graph((), failure=Failure("RuntimeError", "out of memory", "", "a.py:7")))
    >>> print(text.partition(", or")[0])
    The recording at a.py:7 ended with RuntimeError: out of memory.
      line: a.py:7
      try: Use a smaller batch, bfloat16 autocast
    """
    failure = graph.failure
    if failure is None:
        return ""
    # If the loss does not require grad, an error about a cut names the exact cause.
    blocked = Reading(graph).loss_has_no_grad
    for found in find(graph):
        here = found.where and found.where in (failure.where, failure.raised_where)
        # grad-of-non-leaf has severity error only if reading .grad ended the block.
        named = found.rule == "grad-of-non-leaf"
        exact = found.severity == "error" and (here or blocked or named)
        if found.rule == "exception" and not found.advice and not found.nodes:
            return ""
        if found.rule in FAILURE_RULES or exact:
            parts = ("", found.message), ("  line: ", found.where), ("  try: ", found.advice)
            return "\n".join(head + _one_line(text) for head, text in parts if text)
    return ""


def _find_in_ranks(ranks: list[Graph]) -> Findings:
    """Report differences between the graphs of several ranks. `ranks[i]` is the graph of rank i."""
    checked = replace(CheckedCounts.from_graphs(ranks), noun="rank")
    return Findings(_most_severe_first(one_per_block(apply("ranks", ranks))), checked)


def _causes(found: list[Finding]) -> list[Finding]:
    """Return the findings without those that are consequences of other findings."""
    causes = {f.rule for f in found if f.cause != SINCE_EARLIER_BACKWARD}
    effects = {rule.id for rule in rules() if not causes.isdisjoint(rule.caused_by)}
    return [
        f
        for f in found
        if not (f.cause == SINCE_EARLIER_BACKWARD and f.rule in causes) and f.rule not in effects
    ]


def _one_line(text: str) -> str:
    """Return a text without line breaks, shortened to `_MAX_NOTE_LINE` characters."""
    return shorten(" ".join(text.split()), _MAX_NOTE_LINE)


def _graphs(value: Sequence[GraphLike], name: str, example: str) -> list[Graph]:
    if not isinstance(value, Sequence):
        raise TypeError(f"{name} is {type_text(value)}, not a list of graphs: pass {example}.")
    return [graph_of(each) for each in value]


def _most_severe_first(found: Iterable[Finding]) -> list[Finding]:
    # The exact cause of an exception comes before the exception itself.
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.rule == "exception"))
