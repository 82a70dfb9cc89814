"""What is wrong, why, and what to try: rules that read graphs.

Only what was recorded is judged: a rule whose values are missing stays silent. Adding a rule is
adding one function to the file of its family.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..graph import FAILURE_RULES, Finding, Graph, GraphLike, Training, TrainingStep, graph_of
from ..graph.gc import with_gc_disabled
from ..graph.text import shorten, type_text
from ..graph.values import SEVERITIES
from .findings import Checked, Findings
from .graph_reading import Reading
from .repeated_blocks import one_per_block
from .rule import apply, rules_called
from .rules.values import AGAIN
from .run_findings import RunFindings
from .selection import Selection

# By rule: others that tell the cause of what it finds.
_KEEPS = ("retained-graph",)
_FOLLOWS = {
    "zero-grad-before-step": ("optimizer-never-stepped",),
    "constant-loss": ("all-gradients-zero", "stalled-training"),
    "stalled-training": (
        "all-gradients-zero",
        "zero-learning-rate",
        "step-without-gradients",
        "no-update",
        "optimizer-never-stepped",
        "not-in-optimizer",
    ),
    "all-gradients-zero": ("zero-gradient", "dead-relu", "nonfinite-value"),
    "ignored-targets": ("nonfinite-value",),
    "vanishing-gradient": _KEEPS,
    "exploding-gradient": _KEEPS,
    "most-memory": (*_KEEPS, "exception", *FAILURE_RULES),
}
_PREVIOUS = 4  # steps that a step is compared with
_LONGEST = 400  # characters of a line of a note


@with_gc_disabled
def find(
    graph: GraphLike | Sequence[GraphLike],
    previous: Sequence[GraphLike] = (),
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
) -> Findings:
    """Report what is wrong in a recording: errors first, then warnings, then notes.

    Each fault is reported once, with the backwards at which it holds (`Finding.steps`). Printed,
    the result is a table, which counts the notes without showing them; where nothing is wrong it
    says what was checked.

    Args:
        graph: a recording, a step of a training, a training, or one graph: each of its graphs is
            checked. A tensor or its trace contains less, so fewer rules apply. A list has one
            graph for each rank, rank 0 first: only differences between the ranks are reported.
        previous: the graphs or steps before this one, oldest first, for rules that compare steps.
        select: the ids of the rules to report; None: all of them.
        ignore: the ids of rules not to report.

    Raises:
        TypeError: if `graph` is not a graph and has none, or `previous` is not a list of graphs.
        ValueError: if an id of `select` or `ignore` is not a rule's, or `previous` is given with
            a list of ranks.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta = TensorMeta((3,), "float32", "cpu")
    >>> used = Parameter("body.weight", meta, True, module_called=True, has_grad=True)
    >>> lost = Parameter("head.weight", meta, True, module_called=False, has_grad=False)
    >>> print(find(Graph((), parameters=(used, lost)))[0].message)
    head.weight got no gradient: head was never called.
    """
    reported = Selection.of(select, ignore)
    if isinstance(graph, Sequence) and not isinstance(graph, str):
        if previous:
            raise ValueError("previous is of one rank: call find(graph, previous) for each.")
        found = _find_in_ranks(_graphs(graph, "graph", "find([graph, graph, ...])"))
    elif isinstance(graph, Training):
        found = _find_in_steps(graph)
    elif isinstance(graph, Graph) and not previous:
        found = _find_once(graph)
    else:
        found = _find(graph, _graphs(previous, "previous", "find(graph, [previous])"))
    return Findings(filter(reported.includes, found), found.checked)


# By the id of a graph that is alive. To hash a graph takes as long as to judge it.
_judged: dict[int, tuple[weakref.ref[Graph], Findings]] = {}


def _find_once(graph: Graph) -> Findings:
    """What is wrong in a graph, from before where it was asked before: a graph is frozen."""
    number = id(graph)
    known = _judged.get(number)
    if known is None or known[1].checked.rules != rules_called():
        forgotten = weakref.ref(graph, lambda _: _judged.pop(number, None))
        known = _judged[number] = forgotten, _find(graph, [])
    return known[1]


def _find(graph: GraphLike, before: list[Graph]) -> Findings:
    graphs = getattr(graph, "graphs", None)
    if not isinstance(graphs, list) or not graphs:
        graphs = [graph_of(graph)]
    # Copies of the same data have one number in all steps of a run, and in no two recordings.
    earlier = before if isinstance(graph, TrainingStep) else ()
    readings = [Reading(each) for each in graphs[:-1]] + [Reading(graphs[-1], tuple(earlier))]
    found = [(i, f) for i, each in enumerate(readings) for f in apply("graph", each)]
    found += [(i, f) for f in apply("end", readings[-1]) for i in range(len(graphs))]
    found += [(i, f) for f in apply("recording", graphs) for i in range(len(graphs))]
    if len(before) + len(graphs) > 1:
        found += [(len(graphs) - 1, f) for f in apply("steps", [*before, *graphs])]
    checked = Checked.of(graphs, rules_called())
    return Findings(_sorted(one_per_block(_causes(_once(found, len(graphs))))), checked)


def _find_in_steps(training: Training) -> Findings:
    """What is wrong in a training: each thing once, with the places of the steps that have it."""
    steps = training.steps
    found = [
        (i, replace(each, steps=()))
        for i, step in enumerate(steps)
        for each in find(step, steps[max(0, i - _PREVIOUS) : i])
    ]
    graphs = [graph for step in steps for graph in step.graphs]
    checked = replace(Checked.of(graphs, rules_called()), steps=len(steps), noun="step")
    return Findings(_sorted(_once(found, len(steps), graphs)), checked)


def _once(
    found: Iterable[tuple[int, Finding]], count: int, graphs: Iterable[Graph] = ()
) -> list[Finding]:
    """Each thing once, with the places of the steps, of so many, at which it holds."""
    once = RunFindings()
    once.add(0, (), graphs)
    for step, each in found:
        once.add(step, [each])
    return once.all(count)


def diagnosis(graph: Graph) -> str:
    """Return the cause, line and advice for the exception that ended a recording; "" for none.

    At most three lines. A rule that reports the exact cause comes before `exception`, which is left
    out where it would only repeat the message of the exception.

    >>> from graphviz_torch.graph import Failure
    >>> print(diagnosis(Graph((), failure=Failure("RuntimeError", "out of memory", "", "a.py:7"))))
    The recording at a.py:7 ended with RuntimeError: out of memory.
      line: a.py:7
      try: Take a smaller batch, torch.utils.checkpoint for what keeps most, or bfloat16 autocast.
    """
    failure = graph.failure
    if failure is None:
        return ""
    blocked = Reading(graph).blocked  # then the error is what cut the way
    for found in find(graph):
        here = found.where and found.where in (failure.where, failure.raised_where)
        named = found.rule == "grad-of-non-leaf"  # an error where that ended the block
        exact = found.severity == "error" and (here or blocked or named)
        if found.rule == "exception" and not found.advice and not found.nodes:
            return ""
        if found.rule in FAILURE_RULES or exact:
            parts = ("", found.message), ("  line: ", found.where), ("  try: ", found.advice)
            return "\n".join(head + _one_line(text) for head, text in parts if text)
    return ""


def _find_in_ranks(ranks: list[Graph]) -> Findings:
    """Report what differs between the graphs of several ranks, given in the order of the ranks."""
    checked = replace(Checked.of(ranks, rules_called()), noun="rank")
    return Findings(_sorted(one_per_block(apply("ranks", ranks))), checked)


def _causes(found: list[Finding]) -> list[Finding]:
    """Without what only follows from another finding."""
    causes = {f.rule for f in found if f.cause != AGAIN}
    return [
        f
        for f in found
        if not (f.cause == AGAIN and f.rule in causes)
        and causes.isdisjoint(_FOLLOWS.get(f.rule, ()))
    ]


def _one_line(text: str) -> str:
    """Without the line breaks that an error's message or a name may have, and not too long."""
    return shorten(" ".join(text.split()), _LONGEST)


def _graphs(value: Sequence[GraphLike], name: str, example: str) -> list[Graph]:
    if not isinstance(value, Sequence):
        raise TypeError(f"{name} is {type_text(value)}, not a list of graphs: pass {example}.")
    return [graph_of(each) for each in value]


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    # What says exactly why a recording ended comes before that it did.
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.rule == "exception"))
