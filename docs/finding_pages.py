"""Write into the pages of findings what `find` says: `python -m docs.finding_pages`.

A page of docs/findings/ shows a family of rules. The program under each rule is written there by
hand. All else comes from the package: the order, the sentence, and what is said of the program.
`docs/symptoms.md` is written by hand, but for what is said of its programs.
"""

from __future__ import annotations

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

from graphviz_torch import Finding, find, find_across
from graphviz_torch.findings.findings import Checked, Findings
from graphviz_torch.findings.rule import RULES, Rule

FOLDER = Path(__file__).parent / "findings"
_PROGRAM = re.compile(r"^## `([a-z0-9-]+)`$.*?^```python\n(.*?)^```$", re.M | re.S)
SYMPTOMS = Path(__file__).parent / "symptoms.md"
CASE = re.compile(  # a program, what is said of it, and its repair
    r"^```python\n(?P<program>.*?)^```\n\n```text\n(?P<said>.*?)^```\n\n```diff\n(?P<repair>.*?)^```$",
    re.M | re.S,
)
_EMPTY = "from graphviz_torch import record\n\nwith record() as recording:\n    ...\n"
_INDEX = """# What `find` finds

`find(recording)` judges what was recorded. A rule whose values were not recorded stays silent. Each
page below shows a family of rules: lines that cause a finding, and what `print(find(recording))`
says of them, less what is only good to know. Where a program ends with an exception, its traceback
says so too. `graphviz_torch.rules()` gives this table in Python.

| rule | what it says |
|---|---|
{rows}
"""


def families() -> dict[str, list[Rule]]:
    """The rules, by the module that they stand in."""
    found: dict[str, list[Rule]] = {}
    for rule in RULES:
        found.setdefault(rule.find.__module__.rpartition(".")[2], []).append(rule)
    return found


def programs(page: str) -> dict[str, str]:
    """The programs on a page, by rule."""
    return dict(_PROGRAM.findall(page))


def said(program: str) -> Sequence[Finding]:
    """What `find` says of the `recording` of a program, which may raise; or, of its `ranks`."""
    module = ModuleType("__main__")
    torch.manual_seed(0)
    torch.compiler.reset()  # what was compiled before makes sizes and numbers dynamic
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "train.py"
        file.write_text(program)
        with redirect_stdout(StringIO()), suppress(Exception):
            exec(compile(program, str(file), "exec"), module.__dict__)
    if hasattr(module, "ranks"):
        return find_across(module.ranks)
    return find(module.recording)


def table(program: str, rule: str = "") -> str:
    """What `find` says of a program, as a page shows it: all but infos, and those of `rule`."""
    shown = [f for f in said(program) if f.severity != "info" or f.rule == rule]
    return str(Findings(shown, Checked(0, 0, 0))).partition("\n")[2]


def section(rule: Rule, program: str) -> str:
    """What a page shows of a rule."""
    return (
        f"## `{rule.id}`\n\n{rule.sentence}\n\n```python\n{program}```\n\n"
        f"```text\n{table(program, rule.id)}\n```\n"
    )


def symptoms(before: str) -> str:
    """The page of symptoms, with what is said now of its programs."""

    def case(match: re.Match[str]) -> str:
        start, end = (place - match.start() for place in match.span("said"))
        return f"{match[0][:start]}{table(match['program'])}\n{match[0][end:]}"

    return CASE.sub(case, before)


def repaired(program: str, repair: str) -> str:
    """A program after the lines of a diff.

    Raises:
        ValueError: if a line that the diff takes away is not in the program.
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


def page(family: str, before: str) -> str:
    """The page of a family, with the programs of the one before."""
    rules = families()[family]
    head = " ".join((sys.modules[rules[0].find.__module__].__doc__ or "").split("\n\n")[0].split())
    title, _, about = head.partition(": ")
    known = programs(before)
    sections = (section(rule, known.get(rule.id, _EMPTY)) for rule in rules)
    return f"# {title}\n\n{about[:1].upper()}{about[1:]}\n\n" + "\n".join(sections)


def index() -> str:
    """The page that lists all rules."""
    rows = "\n".join(
        f"| [`{rule.id}`]({family}.md#{rule.id}) | {rule.sentence} |"
        for family, rules in families().items()
        for rule in rules
    )
    return _INDEX.format(rows=rows)


def written() -> dict[Path, str]:
    """Every page as it should be."""
    pages = {FOLDER / "index.md": index(), SYMPTOMS: symptoms(SYMPTOMS.read_text())}
    for family in families():
        file = FOLDER / f"{family}.md"
        pages[file] = page(family, file.read_text() if file.exists() else "")
    return pages


if __name__ == "__main__":
    for file, text in written().items():
        file.write_text(text)
