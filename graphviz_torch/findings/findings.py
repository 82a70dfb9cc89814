"""The result of `find`: a list of findings that prints as a table."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from operator import attrgetter

from ..graph import Finding, Graph
from ..graph.immutable import immutable
from ..graph.nodes import INSIDE, REGION
from ..graph.terminal import line_width, option
from ..graph.text import printable, with_short_names
from .run_findings import counts_text, steps_text

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
