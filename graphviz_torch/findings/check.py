"""`find`: apply all rules to a recording, a training, or the graphs of several ranks."""

from __future__ import annotations

import html
import textwrap
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from ..graph import FAILURE_RULES, Finding, Graph, GraphLike, Training, TrainingStep, graph_of
from ..graph.gc import with_gc_disabled
from ..graph.immutable import immutable
from ..graph.nodes import INSIDE, REGION
from ..graph.terminal import line_width, option
from ..graph.text import printable, shorten, type_text, with_short_names
from ..graph.values import SEVERITIES
from .graph_reading import Reading
from .repeated_findings import RunFindings, counts_text, one_per_block, steps_text
from .rule import RULES
from .rules.values import SINCE_EARLIER_BACKWARD
from .table import Selection, apply, rules

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


_INDENT = " " * 8
# Start of the note on a graph's outputs that says which values could not be recorded.
_NOT_RECORDED = "not recorded: "


@immutable
class CheckedCounts:
    """The numbers of nodes and parameters that `find` checked."""

    nodes: int
    parameters: int
    steps: int = 1
    noun: str = "backward"  # the things that `steps` counts: "backward", "step" or "rank"
    # Values that were not recorded. Rules that need them report nothing.
    missing: tuple[str, ...] = ()

    @classmethod
    def from_graphs(cls, graphs: Sequence[Graph]) -> CheckedCounts:
        """Count the nodes and parameters of several graphs."""
        names = {p.name for graph in graphs for p in graph.parameters}
        nodes = [node for graph in graphs for node in graph.nodes]
        notes = dict.fromkeys(map(attrgetter("note"), nodes))
        missing = [
            part for note in notes for part in note.split("; ") if part.startswith(_NOT_RECORDED)
        ]
        if not any(node.order is not None for node in nodes):
            missing.append("no backward")
        elif not any(node.grad_outputs for node in nodes):
            missing.append("gradients not recorded")
        elif any(note.startswith(REGION) for note in notes) and not any(
            node.grad_outputs for node in nodes if node.note == INSIDE
        ):
            missing.append(
                "gradients inside compiled regions not recorded, "
                f"{option('compiled', 'eager')} shows them"
            )
        unique = tuple(dict.fromkeys(missing))
        return cls(len(nodes), len(names), len(graphs), missing=unique)

    def __str__(self) -> str:
        of = f" of {self.steps:,} {self.noun}s" if self.steps > 1 else ""
        counts = (
            (self.nodes, "node", of),
            (self.parameters, "parameter", ""),
        )
        return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}{of}" for n, name, of in counts)


class Findings(list[Finding]):
    """A list of findings, errors first, that prints as a table.

    >>> print(Findings([], CheckedCounts(298, 57)))
    298 nodes, 57 parameters: nothing found
    """

    def __init__(self, findings: Iterable[Finding], checked: CheckedCounts) -> None:
        super().__init__(findings)
        self.checked = checked

    def to_text(self, *, wide: bool = False, notes: bool = False) -> str:
        """Return the table, as wide as the terminal, or 80 characters wide without a terminal.

        Args:
            wide: write each message in one line, whatever the width.
            notes: include findings of severity info, which are otherwise only counted.
        """
        if not self:
            return f"{self.checked}: {self._nothing()}"
        width = line_width(wide)
        shown = [each for each in self if notes or each.severity != "info"]
        hidden_note = "" if len(shown) == len(self) else " (to_text(notes=True) shows all)"
        rows = [f"{self.checked}: {counts_text(self)}{hidden_note}"]
        for finding in shown:
            head = f"{finding.severity:<8}{finding.rule}"
            steps = _steps(finding, self.checked)
            rows.append("  ".join(filter(None, (head, finding.where, steps))))
            texts = with_short_names(finding.message), with_short_names(finding.advice)
            for sign, text in zip(("", "-> "), texts, strict=True):
                if width is None:
                    rows += [_INDENT + sign + text] * bool(text)
                    continue
                further = _INDENT + " " * len(sign)
                rows += textwrap.wrap(
                    text, width, initial_indent=_INDENT + sign, subsequent_indent=further
                )
        return "\n".join(map(printable, rows))

    def _nothing(self) -> str:
        missing = self.checked.missing
        return "nothing found" + (f" ({', '.join(missing)})" if missing else "")

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        checked = html.escape(str(self.checked))
        if not self:
            return f"<p>{checked}: {self._nothing()}</p>"
        faults = [each for each in self if each.severity != "info"]
        notes = [each for each in self if each.severity == "info"]
        shown = self._table(faults) if faults else ""
        if notes:
            head = f"<summary>{counts_text(notes)}</summary>"
            shown += f"<details>{head}{self._table(notes)}</details>"
        return f"<p>{checked}: {html.escape(counts_text(self))}</p>{shown}"

    def _table(self, findings: Sequence[Finding]) -> str:
        """Return an HTML table without empty columns."""
        names = ("severity", "rule", "message", "what to try", "line", "steps")
        table = [
            (
                *(f.severity, f.rule, with_short_names(f.message), with_short_names(f.advice)),
                *(f.where, _steps(f, self.checked)),
            )
            for f in findings
        ]
        shown = [i for i, cells in enumerate(zip(*table, strict=True)) if any(cells)]
        head = "".join(f"<th>{names[i]}</th>" for i in shown)
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:left">{html.escape(printable(row[i], lines=True))}</td>'
                for i in shown
            )
            + "</tr>"
            for row in table
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _steps(finding: Finding, checked: CheckedCounts) -> str:
    """Return "in steps 1 to 3, 7 of 9", or "" if every step has the finding."""
    if len(finding.steps) == checked.steps:
        return ""
    return steps_text(finding, checked.steps, checked.noun)
