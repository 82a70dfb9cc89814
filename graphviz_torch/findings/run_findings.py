"""The findings of a run: each thing once, with the steps at which it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from ..graph import Finding, Graph
from ..graph.units import count_text

# Of these there is one for a line, whatever the results are called.
_BY_LINE = ("target-not-detached", "undetached-advantage", "constant-term")
# A module that a step never called, though others may.
_UNCALLED = re.compile(r": (\S+) was never called\.")
_LEFT_OUT = "Nothing, if forward leaves it out in some steps on purpose; else call it."
# A number that differs from step to step; not part of a name, of a line or of a path.
_NUMBER = re.compile(r"(?<![\w.:\[/-])\d[\d.,]*(e[-+]?\d+)?%?(?![\w:]|\.[^\W\d])")
_PLURAL = re.compile(r"(?<=# )(\w+?)(?:ies|y|s)?\b")  # after such a number: 1 zero, 2 zeros
_TIMES = re.compile(r", \d+ times(?=[.,])")  # in one step
_RUNS = 4  # of steps that are written out
_AWAY = 3  # steps at least, after which a finding is told to be over

# The cause of a finding that follows from one of these, where an earlier step has one.
SPOILT = "NaN or Inf in a parameter"
_SPOILS = ("nonfinite-value", "nonfinite-gradient")

# A step may have these by chance: they are reported where all steps have them.
_IN_ALL_STEPS = ("all-gradients-zero",)

_Thing = tuple[str, str, str]


class RunFindings:
    """What was found so far.

    Two findings are one thing if they differ in numbers that the steps change, as norms and counts.
    What makes weights NaN is one thing with the steps that compute with these weights.

    >>> found = RunFindings()
    >>> found.add(0, [Finding("large", "warning", "The norm is 3.5.")])
    [Finding(rule='large', severity='warning', message='The norm is 3.5.')]
    >>> found.add(1, [Finding("large", "warning", "The norm is 4.1.")])
    []
    >>> found.all(2)
    [Finding(rule='large', severity='warning', message='The norm is 4.1.', steps=(0, 1))]
    """

    def __init__(self) -> None:
        self._things: dict[_Thing, tuple[Finding, dict[int, None]]] = {}
        self._called: set[str] = set()  # modules, in any step

    def add(
        self, step: int, found: Iterable[Finding], graphs: Iterable[Graph] = ()
    ) -> list[Finding]:
        """Take what was found at a step, in its graphs. Returns what is new."""
        new = []
        parameters = (p for graph in graphs for p in graph.parameters)
        used = (p.name for p in parameters if p.module_called or p.node is not None)
        self._called.update(name.rpartition(".")[0] for name in used)
        for finding in found:
            spoilt = finding.cause == SPOILT
            cause = next((t for t, (f, _) in self._things.items() if spoilt and _spoils(f)), None)
            if cause is not None:
                self._things[cause][1][step] = None
                continue
            said = _PLURAL.sub(r"\1", _NUMBER.sub("#", _TIMES.sub("", finding.message)))
            if finding.where and finding.rule in _BY_LINE:
                said = finding.cause  # a variable is not there in all steps to name a result
            thing = finding.rule, finding.where, said
            if thing not in self._things:
                new.append(finding)
            _, steps = self._things.get(thing, (finding, {}))
            steps[step] = None
            self._things[thing] = finding, steps  # its nodes are those of the last that has it
        return new

    def all(self, count: int) -> list[Finding]:
        """Each thing once, as it was found last; with its steps, where there are several.

        Args:
            count: how many steps there are.
        """
        rows = self._things.values()
        if count < 2:
            return [replace(found, steps=()) for found, _ in rows]
        return [
            replace(
                self._judged(f),
                steps=tuple(steps),
                message=_TIMES.sub("", f.message),
            )
            for f, steps in rows
            if len(steps) == count or f.rule not in _IN_ALL_STEPS
        ]

    def _judged(self, finding: Finding) -> Finding:
        """With what other steps say of it: a layer that chance drops is called in some."""
        uncalled = _UNCALLED.search(finding.message)
        if finding.rule != "never-called" or uncalled is None:
            return finding
        module = uncalled[1]
        if not any(f"{path}.".startswith(f"{module}.") for path in self._called):
            return finding
        return replace(finding, severity="info", advice=_LEFT_OUT)


def counts_text(findings: Iterable[Finding]) -> str:
    """Return the number of findings of each severity.

    >>> counts_text([Finding("a", "error", "."), *[Finding("b", "info", ".")] * 2])
    '1 error, 2 notes'
    """
    severities: list[str] = [each.severity for each in findings]
    words = {"error": "error", "warning": "warning", "info": "note"}
    counted = ((severities.count(severity), word) for severity, word in words.items())
    return ", ".join(count_text(number, word) for number, word in counted if number)


def steps_text(finding: Finding, count: int, noun: str = "step") -> str:
    """Where a finding holds, of so many steps: "in each of 3 steps".

    >>> steps_text(Finding("r", "info", "", steps=(0, 1, 4)), 9)
    'in steps 1 to 2, 5 of 9, and no longer'
    >>> steps_text(Finding("r", "info", "", steps=(0, 2, 4, 6)), 8)  # it may come again
    'in steps 1, 3, 5, 7 of 8'
    """
    steps = finding.steps
    if count < 2 or not steps:
        return ""
    if len(steps) == count:
        return f"in each of {count} {noun}s"
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    parts = [f"{a + 1}" if a == b else f"{a + 1} to {b + 1}" for a, b in runs[:_RUNS]]
    more = " and more" if len(runs) > _RUNS else ""
    over = ", and no longer" if noun == "step" and _is_over(steps, count) else ""
    some = f"{noun}s" if len(steps) > 1 else noun
    return f"in {some} {', '.join(parts)}{more} of {count}{over}"


def _spoils(finding: Finding) -> bool:
    """May the optimizer have made weights NaN with what this found?"""
    return finding.severity == "error" and finding.rule in _SPOILS


def _is_over(steps: tuple[int, ...], count: int) -> bool:
    """Has it been away for longer than ever between: players that learn in turn come again."""
    gaps = (after - before for before, after in pairwise((-1, *steps)))
    return count - 1 - steps[-1] >= max(_AWAY, *gaps)
