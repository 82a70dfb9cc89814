"""Write the pages of rules: `python -m docs.finding_pages`, or `… half-precision` for one rule.

A page in docs/findings/ is the docstring of a rule with the reports of its examples.
`docs/symptoms.md` is written by hand, except for the reports of its programs.
"""

from __future__ import annotations

import gc
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import ModuleType

import torch

from graphviz_torch import Finding, find
from graphviz_torch.findings.check import CheckedCounts, Findings
from graphviz_torch.findings.rule import RULES, Rule
from graphviz_torch.findings.table import Rules

FOLDER = Path(__file__).parent / "findings"
CHINESE = Path(__file__).parent / "zh" / "findings"
SYMPTOMS = Path(__file__).parent / "symptoms.md"
CASE = re.compile(  # a program, its report, and its repair
    r"^```python\n(?P<program>.*?)^```\n\n```text\n(?P<said>.*?)^```\n\n```diff\n(?P<repair>.*?)^```$",
    re.M | re.S,
)
_NUMBER = r"\d[\d.,e-]*(?: (?:[KMG]i)?B\b)?"  # also a unit, because MiB may become GiB
_REPORT = re.compile(r"^```text\n.*?^```$", re.M | re.S)
_INDEX = """# Rules

[中文](../zh/findings/index.md)

`find(recording)` and `graphviz-torch run` report these faults. If a rule needs a value that was not
recorded, it reports nothing. `watch`, `experiment` and `rehearse` use the same ids.

Each page below has a program with the fault, and its report. `graphviz-torch rule ID` prints it,
and `graphviz_torch.rules()` this table.

An error ends the training or makes its result useless. A warning is probably a mistake. A note may
be intended: reports count the notes, and `--notes` shows them. The tables name the highest severity
of a rule's findings; a milder case of the fault has a lower one.

{tables}

## For special cases

{advanced}
"""


def families() -> dict[str, list[Rule]]:
    """Return the rules by their family, which is the file that defines them."""
    found: dict[str, list[Rule]] = {}
    for rule in RULES:
        found.setdefault(rule.family, []).append(rule)
    return found


def run(program: str) -> ModuleType:
    """Run a program, which may raise an exception, and return its namespace."""
    module = ModuleType("__main__")
    torch.manual_seed(0)
    torch.compiler.reset()  # after earlier programs, sizes would be dynamic
    gc.collect()  # earlier programs must not free memory while this one runs
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "train.py"
        file.write_text(program)
        with redirect_stdout(StringIO()), suppress(Exception):
            exec(compile(program, str(file), "exec"), module.__dict__)
    return module


def said(program: str) -> Sequence[Finding]:
    """Run a program and return its findings."""
    return findings_of(run(program))


def findings_of(module: ModuleType) -> Sequence[Finding]:
    """Return the findings of a program that has run.

    The first of these variables that the program has decides: `findings`, `watching`, `ranks` or
    `recording`.
    """
    if hasattr(module, "findings"):
        return list(module.findings)
    if hasattr(module, "watching"):
        severities = {rule.id: rule.severity for rule in RULES}
        reports = module.watching.reports
        return [Finding(each.rule, severities[each.rule], each.message) for each in reports]
    if hasattr(module, "ranks"):
        return find(module.ranks)
    return find(module.recording)


def table(program: str, rule: str = "") -> str:
    """Return the report of a program as a page shows it: without notes, except those of `rule`."""
    shown = [f for f in said(program) if f.severity != "info" or f.rule == rule]
    return Findings(shown, CheckedCounts(0, 0)).to_text(notes=True).partition("\n")[2]


def symptoms(before: str) -> str:
    """Return the page of symptoms with the current reports of its programs."""

    def case(match: re.Match[str]) -> str:
        start, end = (place - match.start() for place in match.span("said"))
        rule = match["said"].split()[1]
        return f"{match[0][:start]}{table(match['program'], rule)}\n{match[0][end:]}"

    return CASE.sub(case, before)


def repaired(program: str, repair: str) -> str:
    """Apply the lines of a diff to a program.

    Raises:
        ValueError: if the program does not have a line that the diff removes.
    """
    lines = program.splitlines()
    at = 0
    for line in repair.splitlines():
        if line.startswith("-"):
            at = lines.index(line[1:])
            del lines[at]
        else:
            lines.insert(at, line[1:])
            at += 1
    return "\n".join(lines) + "\n"


def page(rule: Rule) -> str:
    """Return the page of a rule."""
    text = rule.to_markdown([table(example, rule.id) for example in rule.examples])
    if (CHINESE / f"{rule.id}.md").exists():
        text = text.replace("\n\n", f"\n\n[中文](../zh/findings/{rule.id}.md)\n\n", 1)
    return text


def kept_page(rule: Rule) -> str:
    """Return the page of a rule; the old page if it differs only in numbers that `watch` measured.

    These numbers depend on the machine, because `watch` skips readings that would take too long.
    """
    text, file = page(rule), FOLDER / f"{rule.id}.md"
    old = file.read_text() if rule.sources == ("watch",) and file.exists() else ""
    return old if _without_numbers(old) == _without_numbers(text) else text


def _without_numbers(text: str) -> str:
    return _REPORT.sub(lambda found: " ".join(re.sub(_NUMBER, "0", found[0]).split()), text)


def index() -> str:
    """Return the page that lists all rules: a table for each family, and one of advanced rules."""
    tables = []
    for rules in families().values():
        module = sys.modules[rules[0].declared.__module__].__doc__ or ""
        title, _, _ = " ".join(module.partition("\n\n")[0].split()).rstrip(".").partition(":")
        common = [rule for rule in rules if not rule.advanced]
        if common:
            tables.append(f"## {title}\n\n{_rows(common)}")
    advanced = [rule for rule in RULES if rule.advanced]
    return _INDEX.format(tables="\n\n".join(tables), advanced=_rows(advanced))


def _rows(rules: Sequence[Rule]) -> str:
    rows = [f"| [`{each.id}`]({each.id}.md) | {each.severity} | {each.summary} |" for each in rules]
    return "\n".join(["| rule | severity | what it reports |", "|---|---|---|", *rows])


def written() -> dict[Path, str]:
    """Return the current text of all pages, by file."""
    pages = {FOLDER / "index.md": index(), SYMPTOMS: symptoms(SYMPTOMS.read_text())}
    return pages | {FOLDER / f"{rule.id}.md": kept_page(rule) for rule in RULES}


if __name__ == "__main__":
    ids = sys.argv[1:]  # ids of the rules whose pages to write; all rules if none is given
    pages = written() if not ids else {FOLDER / "index.md": index()}
    pages |= {FOLDER / f"{id}.md": kept_page(Rules(RULES).by_id(id)) for id in ids}
    for file in {*FOLDER.glob("*.md")} - {*pages} if not ids else ():
        file.unlink()
    for file, text in pages.items():
        file.write_text(text)
