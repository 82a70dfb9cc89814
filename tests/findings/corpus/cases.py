"""Reported training bugs and healthy trainings: how a row is written, run and scored.

A row is a small program, which takes `record` and uses it as a user would. `play` sets the seed.

A reported bug has the address of its thread, its true cause in one sentence, and words that a
finding about the cause contains. In its source, the expected line ends with `# cause`. If two lines
are right (where a value was computed wrongly, and where it is used), both end with this comment.
Called with `repaired=True`, the program contains the repair from the thread and has no mistake.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from graphviz_torch import Finding, find
from graphviz_torch import record as start
from graphviz_torch.graph import Training, TrainingStep
from graphviz_torch.integrations.steps import LoopSteps, due_steps

Record = Any  # graphviz_torch.record, or a Recorder
Program = Callable[..., object]  # takes `record`, and some of them `repaired`


@dataclass(frozen=True)
class Reported:
    """A bug that someone reported, as a program that has it."""

    program: Program
    address: str  # of the thread
    cause: str
    words: str  # a regular expression, found in what names the cause
    raises: str | None  # a regular expression of the exception; None: the program runs through

    @property
    def name(self) -> str:
        return getattr(self.program, "__name__", "")

    @property
    def set(self) -> str:
        """ "before", "after" or "blind": written before the rules that it hits, kept apart while
        they were written, or written later by one who had not looked at them. Of other rules,
        "tuning" and "holdout": both written before them, the second kept apart. "recent": reported
        since 2023, of kinds that the other sets lack, and written before any rule for them.
        "unseen": as "recent", and kept apart while those rules were written."""
        return self.program.__module__.rpartition(".")[2].partition("_")[0]

    @property
    def repaired(self) -> Program | None:
        """The program without the bug; None where it has no such half."""
        known = "repaired" in inspect.signature(self.program).parameters
        return partial(self.program, repaired=True) if known else None

    @property
    def lines(self) -> frozenset[str]:
        """The lines that may be named, as "before.py:41"."""
        text, first = inspect.getsourcelines(self.program)
        path = Path(inspect.getfile(self.program)).name
        return frozenset(
            f"{path}:{first + i}"
            for i, line in enumerate(text)
            if line.rstrip().endswith("# cause")
        )

    def names_cause(self, finding: Finding) -> bool:
        return bool(re.search(self.words, f"{finding.message} {finding.cause}", re.IGNORECASE))

    def names_line(self, finding: Finding) -> bool:
        told = f"{finding.where} {finding.message} {finding.cause}"
        return any(re.search(rf"{re.escape(line)}(?!\d)", told) for line in self.lines)

    def score(self, findings: list[Finding]) -> float:
        """1: one of the first two findings names the cause and the line; 0.5: one of both; 0."""
        first = findings[:2]
        if any(self.names_cause(f) and self.names_line(f) for f in first):
            return 1.0
        return 0.5 if any(self.names_cause(f) or self.names_line(f) for f in first) else 0.0

    def misled(self, findings: list[Finding]) -> bool:
        """Does the first finding, a warning or an error, name another cause?"""
        first = findings[0] if findings else None
        if first is None or first.severity == "info" or first.rule == "exception":
            return False
        return not self.names_cause(first) and not self.names_line(first)


REPORTED: dict[str, Reported] = {}
HEALTHY: dict[str, Program] = {}  # each function of the files in healthy/ that takes `record`


def reported(
    address: str, *, cause: str, words: str, raises: str | None = None
) -> Callable[[Program], Program]:
    """Enter a program in the table of reported bugs."""

    def enter(program: Program) -> Program:
        row = Reported(program, address, cause, words, raises)
        assert row.name not in REPORTED, row.name
        REPORTED[row.name] = row
        return program

    return enter


def step(optimizer: Optimizer, loss: Tensor) -> None:
    """A step of a training loop, as most programs write it."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Recorder:
    """`record`, which keeps the recording for when the block has ended with an exception.

    Args:
        options: go before those that the program gives.
    """

    recording: Any = None

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.recording = start(*args, **(options | self._options))
        return self.recording


class RunRecorder:
    """Stands for `record`, and records each step as `graphviz-torch run` does."""

    def __init__(self) -> None:
        self._steps: list[TrainingStep] = []

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._run()

    @contextmanager
    def _run(self) -> Iterator[None]:
        loop = LoopSteps(due_steps(), self._take, notes=False)
        try:
            yield
        except BaseException as error:
            loop.close(error)
            raise
        loop.close()

    def _take(self, step: TrainingStep, found: list[Finding]) -> None:
        if self._steps and self._steps[-1].number == step.number:  # told again
            self._steps.pop()
        self._steps.append(step)

    @property
    def recording(self) -> Training:
        return Training(tuple(replace(step, number=i) for i, step in enumerate(self._steps)))


def play(
    program: Program, raises: str | None = None, *, run: bool = False, **options: Any
) -> list[Finding]:
    """The findings on a program's whole recording: errors first, each once.

    Args:
        program: a row's.
        raises: what its exception says, a regular expression; None: it ends without one.
        run: record it step by step, as `graphviz-torch run` does, which knows no model.
        options: of `record`, beside the program's own.

    Raises:
        RuntimeError: where the program does not end so.
    """
    torch.manual_seed(0)
    recorder, said = RunRecorder() if run else Recorder(**options), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(recorder)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    if bool(said) != bool(raises) or not re.search(raises or "", said):
        raise RuntimeError(f"ended with {said or 'no exception'!r}, not {raises or 'none'!r}")
    recording = recorder.recording
    return find(recording) if not run or recording.steps else []


def names_own_line_first(program: Program, findings: list[Finding]) -> bool:
    """Is the first line that a finding names in the program's own file, or called there."""
    own = Path(inspect.getfile(program)).name
    line = re.compile(r"([\w.]+\.py):\d+(?!\d)")
    named = [line.findall(finding.message) for finding in findings]
    wheres = [finding.where.partition(":")[0] for finding in findings if finding.where]
    return all(files[0] == own for files in named if files) and set(wheres) <= {own}
