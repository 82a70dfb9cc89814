"""Merge repeated findings: of a run's steps, and of blocks that differ only in their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from ..graph import Finding, Graph
from ..graph.text import listing
from ..graph.units import count_text

# Rules whose findings for one line are merged even if they name different tensors.
_BY_LINE = ("target-not-detached", "undetached-advantage", "constant-term")
_UNCALLED = re.compile(r": (\S+) was never called\.")
_WITHOUT_GRADIENT = re.compile(r"(\S+) got no gradient: the loss does not depend on it\.")
_LEFT_OUT = "Do nothing if forward leaves it out in some steps on purpose. Otherwise call it."
_USED_IN_OTHER_STEPS = "Do nothing if only some steps are meant to use it, such as a first state."
# Matches a number that may differ between steps, but no number in a name, source location or path.
_NUMBER = re.compile(r"(?<![\w.:\[/-])\d[\d.,]*(e[-+]?\d+)?%?(?![\w:]|\.[^\W\d])")
# Matches the noun after a number and captures its stem: "zero" of "zeros".
_PLURAL = re.compile(r"(?<=# )(\w+?)(?:ies|y|s)?\b")
_TIMES = re.compile(r", \d+ times(?=[.,])")  # number of times in one step
_MAX_RANGES = 4  # number of ranges of steps that are listed
_MIN_STEPS_WITHOUT = 3  # a finding counts as over after this many steps without it

# `Finding.cause` of a finding about NaN or Inf that an earlier step caused. The earlier step has a
# finding of a rule in `_SPOILS`.
SPOILT = "NaN or Inf in a parameter"
_SPOILS = ("nonfinite-value", "nonfinite-gradient")

# Rules that are reported only if all steps have them: one step may have them by chance.
_IN_ALL_STEPS = ("all-gradients-zero",)

_Key = tuple[str, str, str]  # rule, line, and message without numbers


class RunFindings:
    """The distinct findings of the steps added so far.

    Findings of two steps are the same if they differ only in numbers, such as norms and counts. If
    a step makes weights NaN, later findings about these weights are merged with that step's
    finding.

    >>> found = RunFindings()
    >>> found.add(0, [Finding("large", "warning", "The norm is 3.5.")])
    [Finding(rule='large', severity='warning', message='The norm is 3.5.')]
    >>> found.add(1, [Finding("large", "warning", "The norm is 4.1.")])
    []
    >>> found.merge(2)
    [Finding(rule='large', severity='warning', message='The norm is 4.1.', steps=(0, 1))]
    """

    def __init__(self) -> None:
        self._found: dict[_Key, tuple[Finding, dict[int, None]]] = {}
        self._called: set[str] = set()  # paths of modules that any step called
        self._reached: set[str] = set()  # names of parameters that the loss of any step depends on

    def add(
        self, step: int, found: Iterable[Finding], graphs: Iterable[Graph] = ()
    ) -> list[Finding]:
        """Add the findings of a step. Returns those that no earlier step had.

        Args:
            step: index of the step.
            found: the findings of the step.
            graphs: the graphs of the step, which show the modules that were called.
        """
        new = []
        parameters = [p for graph in graphs for p in graph.parameters]
        self._reached.update(p.name for p in parameters if p.node is not None)
        used = (p.name for p in parameters if p.module_called or p.node is not None)
        self._called.update(name.rpartition(".")[0] for name in used)
        for finding in found:
            spoilt = finding.cause == SPOILT
            cause = next((t for t, (f, _) in self._found.items() if spoilt and _spoils(f)), None)
            if cause is not None:
                self._found[cause][1][step] = None
                continue
            said = _PLURAL.sub(r"\1", _NUMBER.sub("#", _TIMES.sub("", finding.message)))
            if finding.where and finding.rule in _BY_LINE:
                said = finding.cause  # the message may name a different variable in each step
            key = finding.rule, finding.where, said
            if key not in self._found:
                new.append(finding)
            _, steps = self._found.get(key, (finding, {}))
            steps[step] = None
            # The last step's finding is kept, because its node ids belong to the last graph.
            self._found[key] = finding, steps
        return new

    def merge(self, count: int) -> list[Finding]:
        """Return each finding once, with the message of the last step that has it.

        Args:
            count: number of steps of the run. For one step, `Finding.steps` is empty.
        """
        rows = self._found.values()
        if count < 2:
            return [replace(found, steps=()) for found, _ in rows]
        return [
            replace(
                self._with_severity(f),
                steps=tuple(steps),
                message=_TIMES.sub("", f.message),
            )
            for f, steps in rows
            if len(steps) == count or f.rule not in _IN_ALL_STEPS
        ]

    def _with_severity(self, finding: Finding) -> Finding:
        """Return a finding with severity info if another step does not have its fault.

        The fault is a module that was never called, or a parameter that the loss does not use.
        """
        uncalled = _UNCALLED.search(finding.message)
        if finding.rule == "never-called" and uncalled is not None:
            module = uncalled[1]
            if any(f"{path}.".startswith(f"{module}.") for path in self._called):
                return replace(finding, severity="info", advice=_LEFT_OUT)
        unused = _WITHOUT_GRADIENT.fullmatch(finding.message)
        if finding.rule == "output-not-in-loss" and unused and unused[1] in self._reached:
            return replace(finding, severity="info", advice=_USED_IN_OTHER_STEPS)
        return finding


def counts_text(findings: Iterable[Finding]) -> str:
    """Return the numbers of findings by severity, as text.

    >>> counts_text([Finding("a", "error", "."), *[Finding("b", "info", ".")] * 2])
    '1 error, 2 notes'
    """
    severities: list[str] = [each.severity for each in findings]
    words = {"error": "error", "warning": "warning", "info": "note"}
    counted = ((severities.count(severity), word) for severity, word in words.items())
    return ", ".join(count_text(number, word) for number, word in counted if number)


def steps_text(finding: Finding, count: int, noun: str = "step") -> str:
    """Return a phrase with the steps of a finding: "in each of 3 steps".

    Args:
        finding: a finding with its steps.
        count: number of steps of the run.
        noun: the unit of `Finding.steps`: "step", "backward" or "rank".

    >>> steps_text(Finding("r", "info", "", steps=(0, 1, 4)), 9)
    'in steps 1 to 2, 5 of 9, and no longer'
    >>> steps_text(Finding("r", "info", "", steps=(0, 2, 4, 6)), 8)
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
    parts = [f"{a + 1}" if a == b else f"{a + 1} to {b + 1}" for a, b in runs[:_MAX_RANGES]]
    more = " and more" if len(runs) > _MAX_RANGES else ""
    over = ", and no longer" if noun == "step" and _is_over(steps, count) else ""
    some = f"{noun}s" if len(steps) > 1 else noun
    return f"in {some} {', '.join(parts)}{more} of {count}{over}"


def _spoils(finding: Finding) -> bool:
    """Return True if the NaN or Inf of this finding may have reached weights in a step."""
    return finding.severity == "error" and finding.rule in _SPOILS


def _is_over(steps: tuple[int, ...], count: int) -> bool:
    """Return True if the finding has been absent at least as long as in any earlier gap.

    Args:
        steps: indices of the training steps that have the finding.
        count: number of training steps.
    """
    gaps = (after - before for before, after in pairwise((-1, *steps)))
    return count - 1 - steps[-1] >= max(_MIN_STEPS_WITHOUT, *gaps)


_PATH = r"(?<![\w./:])\w+(?:\.\w+)+(?![\w/:])"  # "layers.0.attn.weight", but also "0.35"
_INDEX = r"(?<![^.])\d+(?![^.])"  # a block's index in a path
_NUMBER_OF_A_BLOCK = r"(?<![\w.])\d[\d.,]*(?:e[-+]?\d+)?%?(?![\w.]*\w)"


def one_per_block(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in the indices of blocks or, for one line, in paths.

    >>> same = [Finding("r", "info", f"layers.{i}.fc is dead.", nodes=(i,)) for i in range(3)]
    >>> [each.message for each in one_per_block(same)]
    ['layers.0.fc is dead. The same holds for layers.1 and layers.2.']
    >>> same = [Finding("r", "info", f"{name} is dead.", where="a.py:1") for name in ("a.b", "c.b")]
    >>> [each.message for each in one_per_block(same)]
    ['a.b is dead. The same holds for c.']
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        # Findings without a line may have different causes.
        if each.where:
            message, steps = re.sub(_PATH, "*", each.message), None
        else:
            message, steps = re.sub(_PATH, _without_indices, each.message), each.steps
        same = each.rule, each.severity, each.where, each.cause, steps
        groups.setdefault((*same, re.sub(_NUMBER_OF_A_BLOCK, "#", message)), []).append(each)
    return [finding for group in groups.values() for finding in _merge_group(group)]


def _without_indices(path: re.Match[str]) -> str:
    return re.sub(_INDEX, "*", path[0])


def _merge_group(group: Sequence[Finding]) -> Sequence[Finding]:
    first, *others = group
    parts = [_different_part(first, each) for each in others]
    apart = [each for each, part in zip(others, parts, strict=True) if not part]
    names = list(dict.fromkeys(filter(None, parts)))
    if not names:
        return group
    merged = [each for each in group if each not in apart]
    message = f"{first.message} The same holds for {listing(names)}."
    nodes = dict.fromkeys(node for each in merged for node in each.nodes)
    transfers = dict.fromkeys(place for each in merged for place in each.transfers)
    steps = {step for each in merged for step in each.steps}
    return [
        replace(
            first,
            message=message,
            nodes=tuple(nodes),
            transfers=tuple(transfers),
            steps=tuple(sorted(steps)),
        ),
        *apart,
    ]


def _different_part(first: Finding, other: Finding) -> str:
    """Return the path, up to the first different part, that the other finding names: "layers.1".

    Return "" if the findings differ in more than paths. The end of a shortened name,
    "…0.attn.weight", does not contain the whole path.
    """
    paths = (re.findall(f"(?<!…){_PATH}", each.message) for each in (first, other))
    for mine, theirs in zip(*paths, strict=False):
        parts = theirs.split(".")
        for i, (before, after) in enumerate(zip_longest(mine.split("."), parts)):
            if before != after:
                return ".".join(parts[: i + 1])
    return ""
