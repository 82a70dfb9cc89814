"""`graphviz-torch run`: run a script unchanged, record its first steps, and report problems.

The output, arguments and tracebacks of the script are the same as without this command. The exit
code is also the same, with two exceptions: 0 becomes 1 if there is a finding that `--fail-on`
names, and 2 if nothing was recorded or a file could not be written.

`StepEnds` detects where steps end. After the last recorded step, only losses, learning rates,
schedulers and batches are observed, and the script runs at full speed.

Only the main thread of this process is recorded. The report counts other threads and child
processes that train. Under torchrun every rank is recorded, and rank 0 writes one file and one
report for all ranks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ...graph.text import listing
from .formats import SUFFIXES
from .outputs import Outputs
from .reports import add_report
from .script import Children, Script, add_script, exit_status, show_error

_LAST = listing(SUFFIXES, len(SUFFIXES), " or ")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run`."""
    parser.usage = "graphviz-torch run [options] [-m] SCRIPT [ARGS ...]"
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    text = (
        f"write all recorded steps (.json, .json.gz), the last step ({_LAST}), or the report "
        "(.sarif); repeatable"
    )
    parser.add_argument("-o", "--out", type=Path, action="append", default=[], help=text)
    text = "record N steps (default 3; 0 records all)"
    parser.add_argument("--steps", type=int, default=3, metavar="N", help=text)
    text = "record every Nth step (default 1)"
    parser.add_argument("--every", type=int, default=1, metavar="N", help=text)
    add_compiled(parser)
    add_simulate(parser)
    text = "after the script, run its first forward again several times, each with one change"
    parser.add_argument("--experiment", action="store_true", help=text)
    text = "record a fingerprint of each result's values, for `diff --fingerprints`"
    parser.add_argument("--fingerprints", action="store_true", help=text)
    add_report(parser, fail_on="never")
    how = argparse.BooleanOptionalAction
    parser.add_argument("--hint", action=how, default=True, help=argparse.SUPPRESS)
    # `graphviz-torch app` passes this option to record fewer and fewer steps in a long run.
    parser.add_argument("--thinned", action="store_true", help=argparse.SUPPRESS)
    add_script(parser, "the script to run")
    parser.set_defaults(run=_run)


def add_compiled(parser: argparse.ArgumentParser) -> None:
    """Add the option `--compiled`, which all commands that record a script have."""
    text = "show a compiled region as its operations (open, the default) or as one node (closed), "
    text += "or run recorded steps without torch.compile (eager)"
    choices = ("open", "closed", "eager")
    parser.add_argument("--compiled", choices=choices, default="open", help=text)


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the option `--simulate`, with which scripts for CUDA run on a machine without a GPU."""
    text = "run the script with N simulated CUDA devices, on a machine without a GPU: copies are "
    text += "made and recorded, the CPU computes all values, and no time is measured"
    parser.add_argument("--simulate", type=int, metavar="N", help=text)


def _run(parsed: argparse.Namespace) -> int:
    _check(parsed)
    script = Script(parsed.script, parsed.args, module=parsed.module)
    limit = sys.getrecursionlimit()
    # Raise the limit, so that the script can recurse as deep as without this command.
    sys.setrecursionlimit(limit + _frames_below())
    try:
        if parsed.simulate is None:
            return _run_script(parsed, script)
        from ... import simulate_accelerator

        with simulate_accelerator(parsed.simulate, name="cuda"):
            return _run_script(parsed, script)
    finally:
        with suppress(RecursionError):
            sys.setrecursionlimit(limit)


def _frames_below() -> int:
    """Return the number of stack frames of this command below the first frame of the script."""
    frame: FrameType | None = sys._getframe()
    count = 3  # `_run_script`, `Script.run` and two for `exec`, minus this frame
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def _run_script(parsed: argparse.Namespace, script: Script) -> int:
    from ..steps import LoopSteps, due_steps

    outputs, children, process = Outputs(parsed), Children(), os.getpid()
    outputs.warn_of_missing_folders()
    steps: LoopSteps | None = None
    ended: BaseException | None = None
    code: Any = 0
    try:
        script.load()
        steps = LoopSteps(
            due_steps(every=parsed.every, most=parsed.steps, thinned=parsed.thinned),
            outputs.add,
            notes=False,  # the report explains an exception, so that no note is added to it
            compiled=parsed.compiled,
            on_fork=children.mark,
            experiments=parsed.experiment,
            fingerprints=parsed.fingerprints,
            on_early_step=outputs.add_early if parsed.steps else None,
        )
        script.run()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        ended = error
    outputs.running = False
    with suppress(Exception):  # raised if the script has patched a function that `close` uses
        if steps is not None:
            steps.close(ended)
    status = exit_status(code) if ended is None else show_error(ended, script.file)
    if os.getpid() == process:  # not in a forked child, which writes no report
        if parsed.experiment and steps is not None:
            outputs.experiment(steps.first)
        with suppress(Exception):
            sys.stdout.flush()
        failed = outputs.finish(
            begun=steps is not None,
            children=children,
            error=ended,
            threads={} if steps is None else steps.other_threads,
        )
        status = status or failed
    if isinstance(ended, KeyboardInterrupt):
        _end_by_sigint()
    return status


def _check(parsed: argparse.Namespace) -> None:
    for name in ("steps", "every"):
        least = 0 if name == "steps" else 1
        if getattr(parsed, name) < least:
            raise ValueError(f"--{name} {getattr(parsed, name)}: pass {least} or more.")
    for path in parsed.out:
        if not path.name.endswith((".json", ".json.gz", *SUFFIXES, ".sarif")):
            raise ValueError(
                f"-o {path}: unknown format. All steps are written as .json or .json.gz, the last "
                f"step as {_LAST}, the report as .sarif."
            )
    # The script may change the current folder.
    parsed.out = [path.absolute() for path in parsed.out]
    if parsed.write_baseline is not None:
        parsed.write_baseline = parsed.write_baseline.absolute()


def _end_by_sigint() -> NoReturn:
    """End this process by SIGINT, as Python does, so that the parent process sees Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(130)
