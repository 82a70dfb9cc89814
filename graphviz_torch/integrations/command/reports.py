"""Reports of findings: text for a terminal, JSON for programs, SARIF for code scanning."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Any

from ... import Finding, __version__, rules
from ...findings.repeated_findings import counts_text, steps_text
from ...graph import Graph, Transfer
from ...graph.events import OptimizerStep
from ...graph.terminal import cut, is_shell, is_terminal, line_width
from ...graph.text import listing, printable, with_short_names
from ...graph.units import bytes_text, count_text, number_text
from ..excerpt import Lines, excerpt, files_below, no_lines, without_place
from .files import SEVERITIES, say
from .judge import fingerprint

NOTHING_FOUND = "nothing found"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def add_report(parser: argparse.ArgumentParser, fail_on: str) -> None:
    """Add the options that all commands with a report of findings have.

    Args:
        parser: the parser of a command.
        fail_on: default of `--fail-on`.
    """
    parser.add_argument("--format", choices=REPORTS, help="format of the report on stdout")
    parser.add_argument("--wide", action="store_true", help="do not wrap lines")
    choices = ("error", "warning", "never")
    text = "report only these rules (ids separated by commas); repeatable"
    parser.add_argument("--select", action="append", default=[], metavar="RULE", help=text)
    text = "do not report these rules (ids separated by commas); repeatable"
    parser.add_argument("--ignore", action="append", default=[], metavar="RULE", help=text)
    text = "also print notes: findings of severity info"
    parser.add_argument("--notes", action="store_true", help=text)
    text = f"exit with 1 if a finding has this severity or a worse one (default {fail_on})"
    parser.add_argument("--fail-on", choices=choices, default=fail_on, help=text)
    text = "do not report findings that are in this file"
    parser.add_argument("--baseline", type=Path, help=text)
    text = "write the current findings to this file for --baseline, and exit with 0"
    parser.add_argument("--write-baseline", type=Path, metavar="BASELINE", help=text)


def print_report(
    parsed: argparse.Namespace, found: Sequence[Finding], source: Lines = no_lines
) -> None:
    """Print the findings in the format that `--format` selects."""
    if parsed.format in (None, "text"):
        lines = to_lines(found, wide=parsed.wide, source=source, notes=parsed.notes)
        say(lines, SEVERITIES)
    else:
        say(REPORTS[parsed.format](found))


def to_lines(
    found: Sequence[Finding],
    *,
    wide: bool = False,
    steps: int = 1,
    source: Lines = no_lines,
    notes: bool = False,
) -> str:
    """Return the findings as text for a terminal, with source lines, advice and totals.

    Args:
        found: findings of one recording, or of a run.
        wide: do not wrap lines at the terminal's width.
        steps: number of recorded steps; if it is above 1, each finding names its steps.
        source: returns the lines of a source file by its name.
        notes: include findings of severity "info"; otherwise only their number is shown.

    >>> loss = Finding("nan", "error", "loss is NaN.", "Lower the rate.", where="train.py:2")
    >>> print(to_lines([loss], source=lambda _: ["", "loss.backward()"]))
    error[nan]: loss is NaN.
     --> train.py:2
      |
    2 | loss.backward()
      | ^^^^
      = help: Lower the rate.
    <BLANKLINE>
    1 error
    Read more: graphviz-torch rule nan
    """
    width = line_width(wide)
    screen = width if is_terminal() else None
    shown = [each for each in found if notes or each.severity != "info"]
    lines = [line for each in shown for line in _finding_lines(each, width, screen, steps, source)]
    hidden = " (--notes shows all)" if len(shown) < len(found) else ""
    if not shown:
        ids = f": {listing(dict.fromkeys(each.rule for each in found), most=6)}"
        return "\n".join([NOTHING_FOUND] + [totals(found) + ids + hidden] * bool(found))
    more = f"Read more: graphviz-torch rule {shown[0].rule}"
    return "\n".join([*lines, totals(found) + hidden, more])


def _finding_lines(
    finding: Finding, width: int | None, screen: int | None, steps: int, source: Lines
) -> Iterator[str]:
    """Yield the lines of one finding in the layout of rustc's messages.

    Sentences are wrapped at `width`; source lines are cut at `screen`, the terminal's width.
    """
    shown = excerpt(finding, source)
    message, advice = (
        printable(with_short_names(without_place(text, finding.where, shown.names)), lines=True)
        for text in (finding.message, finding.advice)
    )
    yield from _wrap(f"{finding.severity}[{finding.rule}]: {message}", width, "    ")
    yield from (line if screen is None else cut(line, screen) for line in shown.lines)
    if is_shell():
        advice = re.sub(r'record\(compiled="(\w+)"\)', r"--compiled \1", advice)
    gutter = " " * shown.margin
    for name, text in (("note", steps_text(finding, steps)), ("help", advice)):
        if text:
            head = f"{gutter}= {name}: "
            yield from _wrap(head + text, width, " " * len(head))
    yield ""


def view_commands(file: str) -> str:
    """Return the commands that show a recording.

    >>> print(view_commands("a run.json.gz"))
    graphviz-torch view 'a run.json.gz', or graphviz-torch app 'a run.json.gz'
    """
    name = quote(file)
    return f"graphviz-torch view {name}, or graphviz-torch app {name}"


class CopyCounts:
    """Numbers and bytes of copies between devices, by direction and part of the step.

    >>> from graphviz_torch.graph import TensorMeta
    >>> copy = Transfer("HtoD", "cpu", "cuda:0", TensorMeta((3,), "float32", "cpu"), "forward")
    >>> counts = CopyCounts()
    >>> counts.add([copy, copy])
    >>> print(counts)
    2 cpu -> cuda:0 in forward (24 B)
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._nbytes: Counter[str] = Counter()

    def add(self, copies: Iterable[Transfer], sign: int = 1) -> None:
        """Count the copies. A `sign` of -1 subtracts copies that were counted before."""
        for copy in copies:
            direction = f"{copy.source} -> {copy.target} {copy.phase_text}"
            self._counts[direction] += sign
            self._nbytes[direction] += sign * (copy.nbytes or 0)

    def __str__(self) -> str:
        counts = ((way, count) for way, count in self._counts.items() if count)
        each = (f"{count:,} {way} ({bytes_text(self._nbytes[way])})" for way, count in counts)
        return listing(each, most=6, last=", ")


class StepContents:
    """The optimizers, parameters and losses in the steps of a run, as text.

    The text contains losses if each step ran one backward, from a loss that one line computed.

    >>> from graphviz_torch.graph import Node, TensorMeta
    >>> contents = StepContents()
    >>> for i, value in enumerate([2.5, 2.0, 1.75]):
    ...     meta = TensorMeta((), "float32", "cpu")
    ...     loss = Node(0, "MseLossBackward0", (meta,), where="a.py:3", values=((value,),))
    ...     event = OptimizerStep(optimizer="adam")
    ...     contents.add(i, [Graph((loss,), (), ((0, 0),), events=(event,))])
    >>> print(contents)
    adam stepped, loss 2.5 -> 1.75
    """

    def __init__(self) -> None:
        self._optimizers: dict[str, None] = {}
        self._parameters: set[str] = set()
        # Number and loss of the first and of the last step.
        self._first: tuple[int, float | None] = -1, None
        self._last: tuple[int, float | None] = -1, None
        self._lines: set[str] = set()  # lines that computed the losses; "" for unknown ones

    def add(self, number: int, graphs: Sequence[Graph]) -> None:
        """Add a step. A step with the number of the first step replaces it."""
        for graph in graphs:
            self._parameters.update(each.name for each in graph.parameters)
            steps = (each for each in graph.events if isinstance(each, OptimizerStep))
            self._optimizers.update(dict.fromkeys(each.optimizer for each in steps))
        line, loss = _loss(graphs)
        self._lines.add(line)
        self._last = number, loss
        if self._first[0] in (-1, number):
            self._first = self._last

    def __str__(self) -> str:
        parts = []
        if names := list(filter(None, self._optimizers)):
            parts.append(f"{listing(names)} stepped")
        if count := len(self._parameters):
            parts.append(count_text(count, "parameter"))
        ends = dict.fromkeys((self._first, self._last))
        losses = [number_text(loss) for _, loss in ends if loss is not None]
        if len(self._lines) == 1 and losses:
            parts.append(f"loss {' -> '.join(losses)}")
        return ", ".join(parts)


def _loss(graphs: Sequence[Graph]) -> tuple[str, float | None]:
    """Return the line and value of the loss of a step, or "" and None if there is not one loss."""
    outputs = [(graph, node) for graph in graphs for node, _ in graph.outputs]
    if len(outputs) == 1:
        [(graph, node)] = outputs
        loss, scale = graph.nodes[node], graph.step.loss_scale or 1.0
        values = loss.values[0] if loss.values else None
        if values is not None and len(values) == 1 and isinstance(values[0], float):
            return loss.where, values[0] / scale
    return "", None


def totals(found: Sequence[Finding]) -> str:
    """Return the number of findings by severity as text: "2 errors, 1 note"."""
    return counts_text(found) or NOTHING_FOUND


def to_json(found: Sequence[Finding]) -> str:
    """Return the findings as a JSON list, each with all its fields and a fingerprint."""
    fields = ("rule", "severity", "message", "advice", "cause", "where", "nodes", "transfers")
    rows = [
        {name: getattr(each, name) for name in fields} | {"fingerprint": fingerprint(each)}
        for each in found
    ]
    return json.dumps({"format": "graphviz_torch findings", "version": 1, "findings": rows})


def to_sarif(found: Sequence[Finding], root: Path | None = None) -> str:
    """Return the findings as SARIF 2.1.0, with file paths relative to `root`."""
    known = {rule.id: rule for rule in rules()}
    used = sorted({each.rule for each in found})
    where = _Files(root or Path.cwd())
    results = [_result(each, used.index(each.rule), where) for each in found]
    driver = {
        "name": "graphviz_torch",
        "version": __version__,
        "informationUri": "https://github.com/graphviz-torch/graphviz_torch",
        "rules": [_descriptor(id, known.get(id)) for id in used],
    }
    runs = [{"tool": {"driver": driver}, "results": results}]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": runs})


REPORTS: dict[str, Callable[[Sequence[Finding]], str]] = {
    "text": to_lines,
    "json": to_json,
    "sarif": to_sarif,
}


def _descriptor(id: str, rule: Any) -> dict[str, Any]:
    """Return the SARIF metadata of a rule; only the id if this version has no such rule."""
    if rule is None:
        return {"id": id}
    return {
        "id": id,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.sections.get("Why it matters", rule.summary)},
        "help": {"text": rule.page, "markdown": rule.to_markdown()},
        "helpUri": rule.url,
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, rule: int, where: _Files) -> dict[str, Any]:
    advice = f"\n{finding.advice}" if finding.advice else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": printable(finding.message + advice, lines=True)},
        "partialFingerprints": {"graphvizTorch/v1": fingerprint(finding)},
    }
    file, _, line = finding.where.rpartition(":")
    if file and line.isdigit() and int(line) > 0:
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": where[file]},
                    "region": {"startLine": int(line)},
                }
            }
        ]
    return result


class _Files(dict[str, str]):
    """A cache from file names in findings ("train.py") to paths below a folder ("src/train.py")."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __missing__(self, name: str) -> str:
        from urllib.parse import quote

        found = self[name] = quote(self._search(name))
        return found

    def _search(self, name: str) -> str:
        if (self._root / name).is_file():
            return name
        path = next(files_below(self._root, name), None)
        return name if path is None else path.relative_to(self._root).as_posix()


def _wrap(text: str, width: int | None, indent: str) -> Iterator[str]:
    """Yield the lines of a text wrapped at `width` characters, indented after the first line."""
    if width is None:
        yield text.replace("\n", f"\n{indent}")
        return
    for i, line in enumerate(text.split("\n")):
        yield from wrap(
            line,
            width,
            initial_indent=indent * bool(i),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
