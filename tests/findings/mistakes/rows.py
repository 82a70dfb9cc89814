"""Short programs with a mistake, each a decorated function with the expected findings.

Comments in a program's source mark lines. The finding must have the line `# cause` as its own, and
must mention each other marked line. "{uses}" in an expected text stands for the line `# uses`.

A program with the argument `followed` is also a row of `FOLLOWED` in `advice/rows.py`: called with
`followed=True`, it contains the change that the advice describes, and it returns its first loss.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record

Program = Callable[[Record], Any]

NO_GRAD = "does not require grad"
RAISES = {  # how a program ends whose mistake these rules know
    "changed-in-place": "modified by an inplace operation",
    "backward-twice": "backward through the graph a second time",
    "mixed-devices": "same device",
}


@dataclass(frozen=True)
class Mistake:
    """A program, and the finding of a rule that names its mistake."""

    program: Program
    rule: str
    words: tuple[str, ...]  # all in the message
    raises: str | None  # a regular expression of the exception that ends the program
    severity: str | None
    cause: str | None
    advice: str  # in the finding's

    @property
    def lines(self) -> dict[str, str]:
        """The lines that comments name, as {"cause": "paths.py:41"}."""
        text, first = inspect.getsourcelines(self.program)
        path = Path(inspect.getfile(self.program)).name
        found = ((i, re.search(r"  # (\w+)$", line.rstrip())) for i, line in enumerate(text, first))
        return {match[1]: f"{path}:{i}" for i, match in found if match}


MISTAKES: dict[str, Mistake] = {}
SILENT: dict[str, tuple[Program, tuple[str, ...]]] = {}


def says(
    rule: str,
    *words: str,
    raises: str | None = None,
    severity: str | None = None,
    cause: str | None = None,
    advice: str = "",
    same_loss: bool = True,
) -> Callable[[Program], Program]:
    """Enter a program of which the rule has one finding, with these words.

    `same_loss` is False if a program with the argument `followed` changes its loss by it.
    """

    def enter(program: Program) -> Program:
        assert program.__name__ not in MISTAKES, program.__name__
        ends = raises or RAISES.get(rule)
        row = Mistake(program, rule, words, ends, severity, cause, advice)
        MISTAKES[program.__name__] = row
        if "followed" in inspect.signature(program).parameters:
            follows(rule, advice, same_loss=same_loss, raises=ends)(program)
        return program

    return enter


def silent(*rules: str) -> Callable[[Program], Program]:
    """Enter a program of which these rules say nothing; without rules: nothing above a note."""

    def enter(program: Program) -> Program:
        assert program.__name__ not in SILENT, program.__name__
        SILENT[program.__name__] = program, rules
        return program

    return enter
