"""`run`: a script or module as it is, its first steps recorded, and then what is wrong.

What the script prints, its arguments, its exit code and its tracebacks are as without. A step ends
where an optimizer has stepped; a script without an optimizer is one step. Only the thread that runs
the script is recorded. After the last recorded step the script runs as fast as without.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

from ... import Finding, Graph, save
from .files import write_text
from .pictures import draw
from .reports import FORMATS, add_report, judged, to_lines
from .script import Script, shown

_PICTURES = (".svg", ".png", ".pdf", ".dot")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Arguments of `run`."""
    parser.usage = "graphviz-torch run [options] [-m] SCRIPT [ARGS ...]"
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    says = (
        "write the last graph: .json, .json.gz, .svg, .png, .pdf, .dot, .html or .txt; or the "
        "report, without the script's output: .sarif; repeatable"
    )
    parser.add_argument("-o", "--out", type=Path, action="append", default=[], help=says)
    says = "record so many steps (default 3; 0: all)"
    parser.add_argument("--steps", type=int, default=3, metavar="N", help=says)
    says = "record every N-th step (default 1)"
    parser.add_argument("--every", type=int, default=1, metavar="N", help=says)
    add_report(parser, fail_on="never")
    parser.add_argument("script", metavar="SCRIPT")
    arguments = parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER)
    arguments.required = False  # before Python 3.12, a missing SCRIPT missed ARGS too
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    _check(parsed)
    script = Script(parsed.script, parsed.args, module=parsed.module)
    from ..steps import OptimizerSteps, due_steps

    graphs: list[Graph] = []
    found: dict[tuple[str, str], Finding] = {}
    last = parsed.steps * parsed.every

    def noted(step: int, made: list[Graph], each: list[Finding]) -> None:
        graphs[:] = made[-1:]
        for finding in each:
            found.setdefault((finding.rule, finding.message), finding)

    due = due_steps(every=parsed.every)
    # What a note would say of an error stands in the report.
    steps = OptimizerSteps(lambda step: due(step) and (not last or step < last), noted, notes=False)
    code: int | str | None = 0
    ended: BaseException | None = None
    try:
        script.run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int | str | None) else str(error.code)
    except BaseException as error:
        ended = error
    steps.close(ended)
    if ended is not None:
        shown(ended, script.file)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    failed = _report(parsed, steps.recorded, graphs, list(found.values()))
    if isinstance(ended, KeyboardInterrupt):
        _interrupted()
    return (code or 0) or failed


def _check(parsed: argparse.Namespace) -> None:
    for name in ("steps", "every"):
        least = 0 if name == "steps" else 1
        if getattr(parsed, name) < least:
            raise ValueError(f"--{name} {getattr(parsed, name)}: pass {least} or more.")
    for path in parsed.out:
        if not path.name.endswith((".json", ".json.gz", *_PICTURES, ".html", ".txt", ".sarif")):
            raise ValueError(
                f"-o {path}: a graph is written as .json, .json.gz, .svg, .png, .pdf, .dot, .html "
                "or .txt, the report as .sarif."
            )


def _report(
    parsed: argparse.Namespace, recorded: int, graphs: list[Graph], found: list[Finding]
) -> int:
    """Write what was asked for, and say what was found. Returns the exit code."""
    steps = f"{recorded} step{'' if recorded == 1 else 's'} recorded"
    if not graphs:
        steps = "nothing was recorded: no backward ran"
    order = ("error", "warning", "info")
    found.sort(key=lambda each: order.index(each.severity))
    new, failed = judged(parsed, found)
    print(f"graphviz-torch: {steps}", file=sys.stderr)
    if parsed.format is None:
        print(to_lines(new), file=sys.stderr)
    else:
        print(FORMATS[parsed.format](new))
    for path in parsed.out:
        if path.suffix == ".sarif":
            write_text(FORMATS["sarif"](new), path)
        elif graphs:
            _write(graphs[-1], path)
    return failed


def _write(graph: Graph, path: Path) -> None:
    from ... import to_html, to_text

    with redirect_stdout(sys.stderr):  # stdout is the script's
        if path.suffix in _PICTURES:
            draw(graph, path, None)
        elif path.suffix == ".html":
            write_text(to_html(graph, title=path.name), path)
        elif path.suffix == ".txt":
            write_text(to_text(graph), path)
        else:
            print(save(graph, path))


def _interrupted() -> NoReturn:
    """End as Python does after Ctrl-C: what waits for this process is told of the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(130)
