"""The list that `find` returns: it prints as a table, and says what was checked."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..graph import Finding, Graph
from ..graph.terminal import line_width

_INDENT = " " * 8
# A number that differs from step to step; not part of a name, of a line or of a path.
_NUMBER = re.compile(r"(?<![\w.:\[/-])\d[\d.,]*(e[-+]?\d+)?%?(?![\w:])")


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at."""

    rules: int
    nodes: int
    parameters: int
    steps: int = 1
    noun: str = "backward"  # what the steps are

    @classmethod
    def of(cls, graphs: Sequence[Graph], rules: int) -> Checked:
        """What these graphs have together."""
        names = {p.name for graph in graphs for p in graph.parameters}
        return cls(rules, sum(len(graph.nodes) for graph in graphs), len(names), len(graphs))

    def __str__(self) -> str:
        counts = [(self.rules, "rule"), (self.nodes, "node"), (self.parameters, "parameter")]
        if self.steps > 1:
            counts.append((self.steps, self.noun))
        return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in counts)


class Findings(list[Finding]):
    """Findings, errors first. It is a list; as text it is a table.

    >>> print(Findings([], Checked(27, 298, 57)))
    27 rules, 298 nodes, 57 parameters: nothing found
    """

    def __init__(self, findings: Iterable[Finding], checked: Checked) -> None:
        super().__init__(findings)
        self.checked = checked

    def to_text(self, *, wide: bool = False) -> str:
        """The table. A line is as long as the terminal allows, and 80 characters elsewhere.

        `wide` writes each message in one line, however long it is.
        """
        if not self:
            return f"{self.checked}: nothing found"
        width = line_width(wide)
        rows = [f"{self.checked}: {_counts(self)}"]
        for finding in self:
            head = f"{finding.severity:<8}{finding.rule}"
            steps = _steps(finding, self.checked)
            rows.append("  ".join(filter(None, (head, finding.where, steps))))
            for sign, text in (("", finding.message), ("-> ", finding.advice)):
                if width is None:
                    rows += [_INDENT + sign + text] * bool(text)
                    continue
                further = _INDENT + " " * len(sign)
                rows += textwrap.wrap(
                    text, width, initial_indent=_INDENT + sign, subsequent_indent=further
                )
        return "\n".join(rows)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        checked = html.escape(str(self.checked))
        if not self:
            return f"<p>{checked}: nothing found</p>"
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:left">{html.escape(cell)}</td>'
                for cell in (
                    finding.severity,
                    finding.rule,
                    finding.message,
                    finding.advice,
                    finding.where,
                    _steps(finding, self.checked),
                )
            )
            + "</tr>"
            for finding in self
        )
        head = "".join(
            f"<th>{name}</th>"
            for name in ("severity", "rule", "message", "what to try", "line", "steps")
        )
        return (
            f"<p>{checked}: {html.escape(_counts(self))}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )


def merged(found: Iterable[tuple[int, Finding]], count: int) -> list[Finding]:
    """Each thing once, with the steps at which it holds.

    Args:
        found: the number of a step, and a finding on it.
        count: how many steps there are.

    Two findings are one thing if they differ in numbers that the steps change, as norms and counts.
    """
    groups: dict[tuple[str, str, str], list[tuple[int, Finding]]] = {}
    for step, finding in found:
        key = finding.rule, finding.where, _NUMBER.sub("#", finding.message)
        groups.setdefault(key, []).append((step, finding))
    once = []
    for group in groups.values():
        steps = tuple(dict.fromkeys(step for step, _ in group))
        # Its nodes are those of the last graph that has it.
        once.append(replace(group[-1][1], steps=() if count < 2 else steps))
    return once


def _counts(findings: list[Finding]) -> str:
    counted = [
        (n, name)
        for name in ("error", "warning")
        if (n := sum(f.severity == name for f in findings))
    ]
    infos = sum(f.severity == "info" for f in findings)
    words = [f"{n} {name}{'' if n == 1 else 's'}" for n, name in counted]
    return ", ".join([*words, *([f"{infos} to know"] if infos else [])])


def _steps(finding: Finding, checked: Checked) -> str:
    """ "step 1 to 3, 7 of 9"; nothing where it holds in all."""
    count = checked.steps
    if count < 2 or not finding.steps or len(finding.steps) == count:
        return ""
    runs: list[list[int]] = []
    for step in finding.steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    parts = [f"{a + 1}" if a == b else f"{a + 1} to {b + 1}" for a, b in runs[:4]]
    more = " and more" if len(runs) > 4 else ""
    return f"{checked.noun} {', '.join(parts)}{more} of {count}"
