"""What a run leaves: its report and its files, written after each recorded step.

No end of the script loses them: a signal, `os._exit`, a crash and a batch system that stops the
job leave what the steps before have written. So nothing waits for the end, and no signal is
handled. Of a few steps that are asked for each is in a ".json" from its optimizer's step on. Where
all are recorded, those that end within a quarter of a second are written together when the next
begins, so those are what a kill takes. At the end the report is said again,
with what has been found since, and the files that are not up to date are written.

A ".json" or ".json.gz" grows by each step; the other files show the last one. A picture takes a
layout, which may take seconds: it is drawn after the first recorded step, after the last that was
asked for, and at the end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import Finding, load
from ...findings.run_findings import RunFindings, steps_text
from ...graph import Training, TrainingStep
from ...graph.files.replacement import replacement
from ...graph.terminal import in_shell
from ...graph.text import listing, ranks_text, shortened
from ...graph.training.alternating import AlternatingOptimizers
from ...graph.training.file import TrainingFile
from ...graph.units import count_text
from ...graph.values import SEVERITIES
from ..excerpt import Files
from ..ranks import WAIT, RankReport, Ranks, one_list, one_step
from .files import SEVERITIES as COLORS
from .files import say
from .findings.baseline import write_baseline
from .findings.judge import Judge
from .findings.reports import REPORTS, go_on, to_lines, to_sarif
from .formats import FORMATS, format_of
from .main import sentence
from .script import Children

_WAITING = 100  # steps that wait for a file that cannot be written
_BATCH, _SECONDS = 50, 0.25  # steps, or their time, that are written together


class Outputs:
    """The report and the files of a run.

    Args:
        parsed: the arguments of `run`.

    Raises:
        ValueError, OSError: for a baseline that cannot be read.
    """

    def __init__(self, parsed: argparse.Namespace) -> None:
        self._parsed = parsed
        # The script may go to another folder, and may take another stderr.
        self._root, self._stderr = Path.cwd(), sys.stderr
        script = Path(parsed.script).absolute().parent
        self._source = Files((script, self._root), time.time(), loaded=True)
        self._judge = Judge(parsed, self._root if parsed.module else script, self._source)
        self._files: list[Path] = [*parsed.out]
        if parsed.write_baseline is not None:
            self._files.append(parsed.write_baseline)
        self._stale = {*self._files}  # what is not written as the last step would have it
        self._batch = 0  # steps since the last writing, which ended at
        self._wrote = -math.inf
        self._written: set[Path] = set()  # what an earlier step has written
        self._steps = 0
        self._turns = AlternatingOptimizers()
        self._run: Training | None = None  # its last two steps
        # The steps that are not in a file yet.
        self._waiting: dict[Path, list[TrainingStep]] = {
            path: [] for path in parsed.out if path.name.endswith((".json", ".json.gz"))
        }
        self._growing = {path: TrainingFile(path) for path in self._waiting}
        # Steps that waited too long for a file that could not be written, and why it could not.
        self._lost: dict[Path, set[int]] = {path: set() for path in self._waiting}
        self._why: dict[Path, str] = {}
        self._once = RunFindings()
        self._found: list[Finding] = []  # each thing once
        self._recorded = 0  # steps, one that failed at once among them
        self._news: list[Finding] = []  # not said yet
        self._said: list[Finding] = []  # while the script ran
        self._at_step = 0  # when it was said last
        self._ranks = Ranks.of_environment()
        self._stall: Any = None
        if self._ranks is not None:
            from ..stall import StallWatch  # it loads torch

            self._stall = StallWatch(self._ranks, self._say)
        self._experimented = False
        self.running = True  # the script, to which nothing may happen

    def foretell(self) -> None:
        """Say before the script runs, which may take hours, that a file has no folder yet."""
        for path in self._files:
            if not path.parent.exists():
                folder = f"the folder {str(path.parent)!r} does not exist"
                self._say(f"{folder}: unless the script makes it, {path.name} is not written.")

    def add_early(self, step: TrainingStep) -> None:
        """Write a step that goes on into the files that grow, for a signal may end it; `add` will
        take it when it is over.
        """
        if self._ranks is None:
            for path, waiting in self._waiting.items():
                with suppress(Exception):
                    self._growing[path].append(*waiting, step)
                    waiting.clear()

    def add(self, step: TrainingStep, found: list[Finding]) -> None:
        """Take a step that has ended, or the last one again, with more; write what there is while
        the script runs.
        """
        first = self._run is None
        before = () if self._run is None else self._run.steps
        again = bool(before) and before[-1].number == step.number
        if again:
            self._run = Training((*before[:-1], step))
        else:
            self._run = Training((step,) if self._run is None else (self._run.last, step))
            self._steps += any(graph.nodes for graph in step.graphs)
            self._turns.add(step)
            self._recorded += 1
        for path, waiting in self._waiting.items():
            waiting.append(step)
            self._lost[path].update(each.number for each in waiting[:-_WAITING])
            del waiting[:-_WAITING]
        self._news += self._once.add(self._recorded - 1, found, step.graphs)
        self._found = self._once.all(self._recorded)
        self._stale = {*self._files}
        if not self.running:
            return
        if self._ranks is not None and self._ranks.rank:
            with suppress(Exception):
                self._ranks.report(self._report(self._ranks.rank))
            return
        wanted = self._parsed.steps
        last = wanted > 0 and step.number >= (wanted - 1) * self._parsed.every
        self._batch += 1
        due = self._batch == _BATCH or time.monotonic() - self._wrote > _SECONDS
        with suppress(Exception):
            if wanted or due:
                self._write(pictures=first or last)
                self._batch, self._wrote = 0, time.monotonic()
            if last or (not wanted and self._news):
                news = [each for each in self._found if _is_among(each, self._news)]
                new = self._judge.reported(_sorted(news))
                head = "found so far, while the script goes on"
                if new:
                    self._say(head, self._text(new))
                else:
                    self._say(f"nothing {head}")
                self._said += new
                self._at_step = self._recorded
                self._news = []

    def experiment(self, recording: Any) -> None:
        """Run the first forward again, with one thing changed each time, and say what follows."""
        if recording is None or self._ranks is not None:
            self._say("no experiment was made: no recorded forward can run again in one process")
            return
        try:
            from ...experiments import experiment  # it loads torch

            found = experiment(recording)
        except Exception as error:  # what runs again may raise
            self._say(f"no experiment was made ({type(error).__name__}: {error})")
            return
        self._say("experiments", str(found))
        self._experimented = True
        self._found = [*self._once.all(self._recorded), *found.findings]  # of the run, of no step

    def finish(
        self,
        *,
        begun: bool,
        children: Children,
        error: BaseException | None,
        threads: Mapping[str, int],
    ) -> int:
        """Print the report and write the files at the end of the script.

        Args:
            begun: whether the script began to run.
            children: its child processes.
            error: the exception that ended the script.
            threads: numbers of backwards that ran in other threads, by the thread's name.

        Returns:
            The exit code that `--fail-on` asks for; 2 if a file could not be written, or if nothing
            was recorded and no thread or child process trained.
        """
        try:
            if self._stall is not None:
                self._stall.close(error)
            return self._finish(begun, children, error, threads)
        except Exception as error:  # the script has taken away what this needs
            self._say(f"the report could not be written ({type(error).__name__}: {error})")
            return 0

    def _finish(
        self,
        begun: bool,
        children: Children,
        error: BaseException | None,
        threads: Mapping[str, int],
    ) -> int:
        met = ""
        if self._ranks is not None:
            if self._ranks.rank:
                self._ranks.report(self._report(self._ranks.rank))
                self._ranks.finish()
                return self._judge.exit_code(self._judge.reported(_sorted(self._found)))
            met = self._gather(self._ranks)
        new = self._judge.reported(_sorted(self._found))
        code = self._judge.exit_code(new)
        said, unfinished = self._count(), self._is_unfinished(error)
        if self._run is None:
            why = "no backward ran" if begun else "the script could not be read"
            said = f"nothing was recorded: {why}"
        if unfinished:
            said = "Ctrl-C came before the first step ended; what ran of it is not judged"
        said += met + (apart := _threads_text(threads) + children.said(alone=self._run is None))
        if self._run is None and begun and not (apart or unfinished):
            said += "; pass the script that calls loss.backward()"
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # the script may make errors of them
            errors = [*self._write(pictures=True), *self._gaps()]
        shown = self._parsed.format is None and self._run is not None and not unfinished
        if shown and any(_is_among(each, self._said) for each in new):
            said += "; see above"
        self._say(said, *self._lines(new) * shown)
        for path in self._files if self._parsed.hint else ():  # else a file of the caller's
            if path not in self._stale:
                self._print(os.path.relpath(path, self._root))
        for missed in (*errors, *self._judge.mistyped):
            self._say(missed)
        if shown and self._parsed.hint:
            self._say(self._how_to_go_on())
        if self._parsed.format == "sarif":
            _print(to_sarif(new, self._root))
        elif self._parsed.format is not None:
            _print(REPORTS[self._parsed.format](new))
        empty = self._run is None and begun and not (apart or unfinished)
        return code or (2 if errors or empty else 0)

    def _is_unfinished(self, error: BaseException | None) -> bool:
        """Return whether Ctrl-C ended the script before a backward of its first step had run."""
        if not isinstance(error, KeyboardInterrupt):
            return False
        graphs = () if self._run is None else self._run.last.graphs
        return not any(node.order is not None for graph in graphs for node in graph.nodes)

    def _text(self, found: list[Finding]) -> str:
        wide, notes = self._parsed.wide, self._parsed.notes
        with in_shell():
            return to_lines(
                found, wide=wide, steps=self._recorded, source=self._source, notes=notes
            )

    def _lines(self, found: list[Finding]) -> list[str]:
        """Return the lines of the end: what is new, and the steps of what was reported before."""
        said = [each for each in found if _is_among(each, self._said)]
        new = [each for each in found if not _is_among(each, self._said)]
        lines = []
        if new or not said:
            lines.append(self._text(new))
        if not found:
            lines[-1] += self._where_not_looked()
        for each in said if self._recorded > self._at_step else ():  # it may have ended since
            steps = steps_text(each, self._recorded)
            lines.append(", ".join(filter(None, (f"{each.rule} {each.where}".rstrip(), steps))))
        return lines

    def _where_not_looked(self) -> str:
        """What is said where nothing is found: in which steps, and what would look further."""
        wanted = self._parsed.steps
        limited = 0 < wanted <= self._recorded
        more = ["--steps 0 records all"] * limited
        more += ["--experiment tries changes"] * (not self._experimented)
        those = f" in {count_text(wanted, 'recorded step')}" if limited else ""
        return those + "".join(f"; {one}" for one in more)

    def _how_to_go_on(self) -> str:
        """What to type next, to see what was recorded."""
        for path in self._growing:
            if path not in self._stale:
                return f"see it: {go_on(os.path.relpath(path, self._root))}"
        return f"to see the graph, run with -o run.json.gz, then: {go_on('run.json.gz')}"

    def _report(self, rank: int) -> RankReport:
        found = tuple(self._found)
        if self._run is None:
            return RankReport(rank, self._steps, found)
        return RankReport(rank, self._steps, found, self._run.last)

    def _gather(self, ranks: Ranks) -> str:
        """Take what the others report: one graph, one list. Returns what to say of them."""
        reports = {0: self._report(0), **ranks.reports(seconds=WAIT)}
        steps = {rank: report.step for rank, report in reports.items() if report.graph.nodes}
        number = max((step.number for step in steps.values()), default=0)
        behind = [rank for rank, step in steps.items() if step.number < number]
        if steps:
            same = {rank: step for rank, step in steps.items() if step.number == number}
            self._run = Training((one_step(same),))
            for path in self._growing:
                self._take_ranks(path, self._run)
        self._found = one_list([*reports.values()])
        self._stale = {*self._files}
        missing = ranks_text({*range(ranks.size)} - {*reports})
        silent = f"; nothing came from {missing}" if len(reports) < ranks.size else ""
        ended = f"; {ranks_text(behind)} ended before step {number}" if behind else ""
        return f" on {count_text(len(reports), 'rank')}{ended}{silent}"

    def _count(self) -> str:
        turns = str(self._turns)
        simulated = self._parsed.simulate
        on = f" on {count_text(simulated, 'simulated CUDA device')}" if simulated else ""
        return f"{count_text(self._steps, 'step')} recorded{on}" + (f" ({turns})" if turns else "")

    def _say(self, sentence: str, *lines: str) -> None:
        self._print("\n".join([f"graphviz-torch: {sentence}", *lines]))

    def _print(self, text: str) -> None:
        with suppress(Exception):  # the script may have closed it
            say(text, COLORS, self._stderr)

    def _write(self, *, pictures: bool) -> list[str]:
        """Write the files that are not up to date. Returns what could not be written, and why."""
        errors = []
        for path in self._files:
            name = format_of(path)
            if name and FORMATS[name].slow and not pictures:
                continue
            if path in self._stale or not path.exists():
                try:
                    if self._write_file(path):
                        self._stale.discard(path)
                        self._written.add(path)
                except Exception as error:
                    self._stale.add(path)
                    kept = path in self._written and path.exists()
                    missed = "does not have the last step" if kept else "was not written"
                    self._why[path] = sentence(error)
                    errors.append(f"{path.name} {missed}: {sentence(error)}")
        return errors

    def _gaps(self) -> list[str]:
        """Return which steps are missing in the middle of a file, and why."""
        return [
            f"{path.name} does not have {_numbers(sorted(lost))}: {self._why.get(path, '')}"
            for path, lost in self._lost.items()
            if lost
        ]

    def _write_file(self, path: Path) -> bool:
        """Whether there was something to write."""
        found = _sorted(self._found)
        if path == self._parsed.write_baseline:
            write_baseline(path, found)
        elif path.suffix == ".sarif":
            _write_text(to_sarif(self._judge.reported(found), self._root), path)
        elif self._run is None:
            return False
        elif path in self._growing:
            self._growing[path].append(*self._waiting[path])
            self._waiting[path].clear()
        elif name := format_of(path):
            chosen = FORMATS[name]
            title = {"title": path.name} if chosen.titled else {}
            made = chosen.make(self._run, **chosen.run_options, **title)
            if isinstance(made, str):
                _write_text(made, path)
            else:
                made.render(outfile=path)
        return True

    def _take_ranks(self, path: Path, last: Training) -> None:
        """Let the step of all ranks stand in a file in place of this rank's last one."""
        steps: tuple[TrainingStep, ...] = ()
        with suppress(OSError, ValueError):  # nothing stands there yet
            written = load(path)
            steps = written.steps if isinstance(written, Training) else ()
        number = last.steps[0].number
        self._waiting[path] = [*(step for step in steps if step.number < number), *last.steps]
        self._growing[path] = TrainingFile(path)


def _is_among(finding: Finding, others: Iterable[Finding]) -> bool:
    """Is it one of these, as it was found at another step."""
    once = RunFindings()
    once.add(0, others)
    return not once.add(0, [finding])


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _threads_text(threads: Mapping[str, int]) -> str:
    """Return a report's clause on backwards in other threads.

    >>> _threads_text({"trainer": 5})
    "; 5 backwards ran in the thread 'trainer', which is not recorded: train in the main thread"
    """
    if not threads:
        return ""
    names = listing([repr(shortened(name, 40)) for name in threads])
    one = len(threads) == 1
    which = f"thread {names}, which is" if one else f"threads {names}, which are"
    ran = count_text(sum(threads.values()), "backward")
    return f"; {ran} ran in the {which} not recorded: train in the main thread"


def _numbers(steps: Sequence[int]) -> str:
    """Return numbers of steps in words.

    >>> _numbers([4]), _numbers([4, 5, 6, 9])
    ('step 4', 'the steps 4 to 6 and 9')
    """
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"step {parts[0]}" if len(steps) == 1 else f"the steps {listing(parts, 5)}"


def _write_text(text: str, path: Path) -> None:
    with replacement(path) as file:
        file.write(text.encode())


def _print(report: str) -> None:
    """Print to stdout, with escapes for the letters that it lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    say(report.encode(encoding, "backslashreplace").decode(encoding))
