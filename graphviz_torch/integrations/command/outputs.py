"""Write the report and the files of `graphviz-torch run` while the script runs.

Files are written early, so that recorded steps are not lost if the script ends by a signal, by
`os._exit`, by a crash, or because a batch system stops the job. No signal handler is installed.
With `--steps N`, a step is written as soon as its optimizer has stepped. With `--steps 0`, all
steps that ended within a quarter of a second are written together when the next step begins. If the
process is killed, only these steps are lost.

At the end of the script, the report with all findings is printed, and files that do not contain the
last step are written again.

A ".json" or ".json.gz" file contains all steps; files of other formats show the last step. A
picture may take seconds to lay out. Pictures are therefore drawn only after the first recorded
step, after the last requested step, and at the end of the script.
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
from ...findings.repeated_findings import RunFindings, steps_text
from ...graph import Training, TrainingStep, Transfer
from ...graph.files.replacement import replacement
from ...graph.terminal import in_shell
from ...graph.text import listing, ranks_text, shorten
from ...graph.training_file import TrainingFile
from ...graph.training_step import AlternatingOptimizers
from ...graph.units import count_text
from ...graph.values import SEVERITIES
from ..excerpt import SourceReader
from ..ranks import WAIT, RankReport, Ranks, merge_findings, merge_steps
from .files import SEVERITIES as COLORS
from .files import say
from .formats import FORMATS, format_of
from .judge import Judge, write_baseline
from .main import sentence
from .reports import (
    NOTHING_FOUND,
    REPORTS,
    CopyCounts,
    StepContents,
    to_lines,
    to_sarif,
    view_commands,
)
from .script import Children

_MAX_UNWRITTEN = 100  # maximum number of steps kept in memory while a file cannot be written
_MAX_BATCH = 50  # maximum number of steps that are written together
_BATCH_SECONDS = 0.25  # minimum number of seconds between two writes with `--steps 0`


class Outputs:
    """Writer of a run's report and files.

    Args:
        parsed: the arguments of `run`.

    Raises:
        ValueError: if a rule's id, the configuration or the baseline is invalid.
        OSError: if the configuration or the baseline cannot be read.
    """

    def __init__(self, parsed: argparse.Namespace) -> None:
        self._parsed = parsed
        # The script may change the current folder or replace sys.stderr.
        self._root, self._stderr = Path.cwd(), sys.stderr
        script = Path(parsed.script).absolute().parent
        self._source = SourceReader((script, self._root), time.time(), loaded=True)
        self._judge = Judge(parsed, self._root if parsed.module else script, self._source)
        self._files: list[Path] = [*parsed.out]
        if parsed.write_baseline is not None:
            self._files.append(parsed.write_baseline)
        self._stale = {*self._files}  # files that do not contain the last step
        self._batch = 0  # number of steps added since the files were last written
        self._wrote = -math.inf  # time when the files were last written
        self._written: set[Path] = set()  # files that were written at least once
        self._steps = 0
        self._turns = AlternatingOptimizers()
        self._copies = CopyCounts()
        self._contents = StepContents()
        self._run: Training | None = None  # the last two steps
        # File to which steps are appended -> the steps that it does not contain yet.
        self._waiting: dict[Path, list[TrainingStep]] = {
            path: [] for path in parsed.out if path.name.endswith((".json", ".json.gz"))
        }
        self._growing = {path: TrainingFile(path) for path in self._waiting}
        # File -> numbers of the steps that could not be written; file -> the last error message.
        self._lost: dict[Path, set[int]] = {path: set() for path in self._waiting}
        self._why: dict[Path, str] = {}
        self._once = RunFindings()
        self._found: list[Finding] = []  # findings of all steps, without repetitions
        self._recorded = 0  # number of added steps, including steps without nodes
        self._news: list[Finding] = []  # findings not yet printed
        self._said: list[Finding] = []  # findings printed while the script ran
        self._at_step = 0  # number of recorded steps when findings were last printed
        self._ranks = Ranks.from_environment()
        self._stall: Any = None
        if self._ranks is not None:
            from ..stall import StallWatch  # imports torch

            self._stall = StallWatch(self._ranks, self._say)
        self._experimented = False
        # True while the script runs, in which case no error of this class may reach the script.
        self.running = True

    def warn_of_missing_folders(self) -> None:
        """Warn of files whose folder does not exist, before the script starts."""
        for path in self._files:
            if not path.parent.exists():
                folder = f"the folder {str(path.parent)!r} does not exist"
                self._say(f"{folder}: {path.name} is lost unless the script creates this folder.")

    def add_early(self, step: TrainingStep) -> None:
        """Append an unfinished step to the growing files, in case the process is killed.

        `add` replaces the unfinished step once the step has ended.
        """
        if self._ranks is None:
            for path, waiting in self._waiting.items():
                with suppress(Exception):
                    self._growing[path].append(*waiting, step)
                    waiting.clear()

    def add(self, step: TrainingStep, found: list[Finding]) -> None:
        """Add a step that has ended. While the script runs, write the files and print new findings.

        A step with the same number as the last one replaces the last one.
        """
        first = self._run is None
        before = () if self._run is None else self._run.steps
        again = bool(before) and before[-1].number == step.number
        if again:
            self._run = Training((*before[:-1], step))
            self._copies.add(_copies_of(before[-1]), -1)
        else:
            self._run = Training((step,) if self._run is None else (self._run.last, step))
            self._steps += any(graph.nodes for graph in step.graphs)
            self._turns.add(step)
            self._recorded += 1
        self._copies.add(_copies_of(step))
        self._contents.add(step.number, step.graphs)
        for path, waiting in self._waiting.items():
            waiting.append(step)
            self._lost[path].update(each.number for each in waiting[:-_MAX_UNWRITTEN])
            del waiting[:-_MAX_UNWRITTEN]
        self._news += self._once.add(self._recorded - 1, found, step.graphs)
        self._found = self._once.merge(self._recorded)
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
        failed = any(len(waiting) > _MAX_BATCH for waiting in self._waiting.values())
        due = failed or self._batch == _MAX_BATCH
        due = due or time.monotonic() - self._wrote > _BATCH_SECONDS
        with suppress(Exception):
            if wanted or due:
                self._write(pictures=first or last)
                self._batch, self._wrote = 0, time.monotonic()
            if last or (not wanted and self._news):
                news = [each for each in self._found if _is_among(each, self._news)]
                if not self._parsed.notes:
                    news = [each for each in news if each.severity != "info"]
                new = self._judge.filter(_by_severity(news))
                head = "found so far, while the script continues"
                if new:
                    self._say(head, self._text(new))
                else:
                    self._say(f"nothing {head}")
                self._said += new
                self._at_step = self._recorded
                self._news = []

    def experiment(self, recording: Any) -> None:
        """Run the first recorded forward again with one change at a time, and print the results."""
        if recording is None or self._ranks is not None:
            self._say("no experiment ran: it needs a recorded forward, and a run with one process")
            return
        try:
            from ...experiments import experiment  # imports torch

            found = experiment(recording)
        except Exception as error:  # the user's forward may raise an exception
            self._say(f"no experiment ran ({type(error).__name__}: {error})")
            return
        self._say("experiments", str(found))
        self._experimented = True
        # Findings of experiments belong to the whole run, not to a step.
        self._found = [*self._once.merge(self._recorded), *found.findings]

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
            begun: whether the script was compiled and began to run.
            children: child processes of the script that train.
            error: the exception that ended the script, or None.
            threads: names of threads that are not recorded, and how often each called backward.

        Returns:
            The exit code: 1 if there is a finding that `--fail-on` names; else 2 if a file could
            not be written, or if no thread and no child process trained; else 0.
        """
        try:
            if self._stall is not None:
                self._stall.close(error)
            return self._finish(begun, children, error, threads)
        except Exception as error:  # the script may have patched a function that this class uses
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
                return self._judge.exit_code(self._judge.filter(_by_severity(self._found)))
            met = self._gather(self._ranks)
        new = self._judge.filter(_by_severity(self._found))
        code = self._judge.exit_code(new)
        message, unfinished = self._count(), self._is_unfinished(error)
        if self._run is None:
            why = "no backward ran" if begun else "the script could not be read"
            why += " in the main thread" * bool(threads)
            message = f"nothing was recorded: {why}"
        if unfinished:
            message = "Ctrl-C came before the first step ended; the unfinished step is not checked"
        apart = _threads_text(threads) + children.report_text(alone=self._run is None)
        message += met + apart
        if self._run is None and begun and not (apart or unfinished):
            message += "; pass the script that calls loss.backward()"
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # the script may turn warnings into errors
            errors = [*self._write(pictures=True), *self._gaps()]
        shown = self._parsed.format is None and self._run is not None and not unfinished
        if shown and any(_is_among(each, self._said) for each in new):
            message += "; see above"
        self._say(message, *self._lines(new) * shown)
        for path in self._files if self._parsed.hint else ():  # the app passes --no-hint
            if path not in self._stale:
                self._print(os.path.relpath(path, self._root))
        for missed in (*errors, *self._judge.remarks):
            self._say(missed)
        if shown and self._parsed.hint:
            self._say(self._next_command())
        if self._parsed.format == "sarif":
            _print(to_sarif(new, self._root))
        elif self._parsed.format is not None:
            _print(REPORTS[self._parsed.format](new))
        empty = self._run is None and begun and not (apart or unfinished)
        return code or (2 if errors or empty else 0)

    def _is_unfinished(self, error: BaseException | None) -> bool:
        """Return whether Ctrl-C ended the script before a backward of its first step had run."""
        return isinstance(error, KeyboardInterrupt) and not self._has_backward()

    def _has_backward(self) -> bool:
        """Return whether a backward ran in the last recorded step."""
        graphs = () if self._run is None else self._run.last.graphs
        return any(node.order is not None for graph in graphs for node in graph.nodes)

    def _text(self, found: list[Finding]) -> str:
        wide = self._parsed.wide
        # If no backward ran, findings of severity "info" are shown, because one of them says so.
        notes = self._parsed.notes or not self._has_backward()
        with in_shell():
            return to_lines(
                found, wide=wide, steps=self._recorded, source=self._source, notes=notes
            )

    def _lines(self, found: list[Finding]) -> list[str]:
        """Return the lines of the final report.

        Findings that were not printed before come first. A finding that was printed while the
        script ran is not repeated; one line names the steps that have it.
        """
        printed = [each for each in found if _is_among(each, self._said)]
        new = [each for each in found if not _is_among(each, self._said)]
        lines = []
        if new or not printed:
            lines.append(self._text(new))
        if lines and lines[0].startswith(NOTHING_FOUND):
            notes = lines[0].removeprefix(NOTHING_FOUND)
            nothing = NOTHING_FOUND + self._scope_text()
            lines[0] = notes.lstrip() if printed else nothing + notes
        later = printed if self._recorded > self._at_step else ()
        for each in later:  # the findings printed before, with the steps that have them
            steps = steps_text(each, self._recorded)
            lines.append(", ".join(filter(None, (f"{each.rule} {each.where}".rstrip(), steps))))
        if self._ranks is None and (copies := str(self._copies)):
            lines.append(f"copies: {copies}")
        return lines

    def _scope_text(self) -> str:
        """Return the text after "nothing found": the steps, and options that check more."""
        wanted = self._parsed.steps
        limited = 0 < wanted <= self._recorded
        more = ["--steps 0 records all"] * limited
        more += ["--experiment tries changes"] * (not self._experimented)
        those = f" in {count_text(wanted, 'recorded step')}" if limited else ""
        contents = str(self._contents) if self._ranks is None else ""
        seen = f" ({contents})" if contents else ""
        return those + seen + "".join(f"; {one}" for one in more)

    def _next_command(self) -> str:
        """Return a text with commands that show the recording."""
        for path in self._growing:
            if path not in self._stale:
                return f"see it: {view_commands(os.path.relpath(path, self._root))}"
        return f"to see the graph, run with -o run.json.gz, then: {view_commands('run.json.gz')}"

    def _report(self, rank: int) -> RankReport:
        found = tuple(self._found)
        if self._run is None:
            return RankReport(rank, self._steps, found)
        return RankReport(rank, self._steps, found, self._run.last)

    def _gather(self, ranks: Ranks) -> str:
        """Merge the reports of all ranks, and return a text about the ranks.

        The text contains the number of ranks, and names ranks that ended early or sent no report.
        """
        reports = {0: self._report(0), **ranks.reports(seconds=WAIT)}
        steps = {rank: report.step for rank, report in reports.items() if report.graph.nodes}
        number = max((step.number for step in steps.values()), default=0)
        behind = [rank for rank, step in steps.items() if step.number < number]
        if steps:
            same = {rank: step for rank, step in steps.items() if step.number == number}
            self._run = Training((merge_steps(same),))
            for path in self._growing:
                self._take_ranks(path, self._run)
        self._found = merge_findings([*reports.values()])
        self._stale = {*self._files}
        missing = ranks_text({*range(ranks.size)} - {*reports})
        silent = f"; no report from {missing}" if len(reports) < ranks.size else ""
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
        """Print to the stream that was `sys.stderr` when the script started."""
        with suppress(Exception):  # the script may have closed stderr
            say(text, COLORS, self._stderr)

    def _write(self, *, pictures: bool) -> list[str]:
        """Write the files that lack the last recorded step; return a message for each failure."""
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
                    missed = "does not contain the last step" if kept else "was not written"
                    self._why[path] = sentence(error)
                    errors.append(f"{path.name} {missed}: {sentence(error)}")
        return errors

    def _gaps(self) -> list[str]:
        """Return a message for each file that lacks steps."""
        return [
            f"{path.name} does not contain {_numbers(sorted(lost))}: {self._why.get(path, '')}"
            for path, lost in self._lost.items()
            if lost
        ]

    def _write_file(self, path: Path) -> bool:
        """Write one file. Return False if the file needs a recorded step and there is none."""
        found = _by_severity(self._found)
        if path == self._parsed.write_baseline:
            write_baseline(path, found)
        elif path.suffix == ".sarif":
            _write_text(to_sarif(self._judge.filter(found), self._root), path)
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
        """Replace this rank's last step in a file with the merged step of all ranks."""
        steps: tuple[TrainingStep, ...] = ()
        with suppress(OSError, ValueError):  # raised if the file does not exist yet
            written = load(path)
            steps = written.steps if isinstance(written, Training) else ()
        number = last.steps[0].number
        self._waiting[path] = [*(step for step in steps if step.number < number), *last.steps]
        self._growing[path] = TrainingFile(path)


def _is_among(finding: Finding, others: Iterable[Finding]) -> bool:
    """Return whether `others` contain the finding; numbers and steps may differ."""
    once = RunFindings()
    once.add(0, others)
    return not once.add(0, [finding])


def _by_severity(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _threads_text(threads: Mapping[str, int]) -> str:
    """Return a clause that names threads which called backward and are not recorded.

    >>> _threads_text({"trainer": 5})
    "; 5 backwards ran in the thread 'trainer', which is not recorded: train in the main thread"
    """
    if not threads:
        return ""
    names = listing([repr(shorten(name, 40)) for name in threads])
    one = len(threads) == 1
    which = f"thread {names}, which is" if one else f"threads {names}, which are"
    ran = count_text(sum(threads.values()), "backward")
    return f"; {ran} ran in the {which} not recorded: train in the main thread"


def _numbers(steps: Sequence[int]) -> str:
    """Return ascending step numbers as text, with ranges.

    >>> _numbers([4]), _numbers([4, 5, 6, 9])
    ('step 4', 'steps 4 to 6 and 9')
    """
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"step {parts[0]}" if len(steps) == 1 else f"steps {listing(parts, 5)}"


def _write_text(text: str, path: Path) -> None:
    with replacement(path) as file:
        file.write(text.encode())


def _print(report: str) -> None:
    """Print to stdout. Characters that the encoding of stdout lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    say(report.encode(encoding, "backslashreplace").decode(encoding))


def _copies_of(step: TrainingStep) -> tuple[Transfer, ...]:
    """Return the copies between devices in a step, each once: its last graph contains them all."""
    return step.graphs[-1].transfers if step.graphs else ()
