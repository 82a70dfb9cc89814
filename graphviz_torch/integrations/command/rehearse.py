"""`graphviz-torch rehearse`: estimate each rank's memory and traffic, without GPUs.

The unchanged script runs as one rank, with the environment that torchrun would set, until the last
rehearsed step ends. The script's output goes to stderr, so that stdout contains only the report. If
several ranks are rehearsed, each has its own process, and their collectives must match.

`--fit` finds plans with which a step fits into memory, and the cost of each plan. A plan changes
arguments that the script passes to PyTorch; the script itself is not edited. For each plan, a new
process rehearses the whole script. The result is printed to stderr as soon as the process ends.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from ... import save, to_html
from ...graph.text import ranks_text
from ...graph.units import bytes_text, count_text
from ...rehearsal import (
    CollectiveCall,
    Trial,
    compare_order,
    draw_memory,
    draw_trials,
    plans,
    rehearse,
    representative_ranks,
    trial_table,
    try_plans,
)
from .files import say
from .script import Script, add_script, show_error

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_rehearse(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rehearse`."""
    parser.usage = "graphviz-torch rehearse [options] [-m] SCRIPT [ARGS ...]"
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    text = "number of ranks (default: the product of --mesh, or 1)"
    parser.add_argument("--ranks", type=int, metavar="N", help=text)
    text = "names for process groups without a name: the dimensions of the mesh, innermost last: "
    text += "dp=8,tp=8"
    parser.add_argument("--mesh", type=_mesh, default={}, metavar="NAME=N,...", help=text)
    text = "the rank to rehearse (default 0); repeatable"
    parser.add_argument("--rank", type=int, action="append", default=[], metavar="N", help=text)
    text = "memory of one device, such as 80GiB; the report says whether the step fits"
    parser.add_argument("--device-memory", type=_bytes, metavar="SIZE", help=text)
    text = "find plans with which the step fits into a device with SIZE of memory, and their cost"
    parser.add_argument("--fit", type=_bytes, metavar="SIZE", help=text)
    text = "script arguments that --fit tries as one more plan: --try='--batch 4'; repeatable"
    parser.add_argument(
        "--try", dest="other", action="append", default=[], metavar="ARGS", help=text
    )
    names = ", ".join([*(name for name, _ in plans()), "mesh=16x4"])
    text = f"change arguments that the script passes to PyTorch: {names}; repeatable"
    parser.add_argument("--plan", action="append", default=[], metavar="NAME", help=text)
    text = "run N steps and report the last (default 2: step 1 creates the optimizer's state)"
    parser.add_argument("--steps", type=int, default=2, metavar="N", help=text)
    text = "what .item() returns: at line 30 with 30=0.5 or train.py:30=0.5, everywhere with 0.5; "
    text += "repeatable"
    parser.add_argument("--value", action="append", default=[], metavar="LINE=VALUE", help=text)
    text = "a device's speed in 10^12 operations per second; prints a lower bound of a step's time"
    parser.add_argument("--tflops", type=_figure, metavar="X", help=text)
    text = "a rank's bandwidth in 10^9 bytes per second, for the same lower bound"
    parser.add_argument("--bandwidth", type=_figure, metavar="X", help=text)
    text = "format of the report on stdout; order: the rank's collective calls in order, as JSON"
    parser.add_argument("--format", choices=("text", "json", "order"), default="text", help=text)
    text = "check that all ranks call the same collectives in the same order"
    parser.add_argument("--order", action="store_true", help=text)
    text = (
        "write the graph (.json, .json.gz, .html), or a chart of memory over time (.svg; with "
        "--fit: of the plans); repeatable"
    )
    parser.add_argument("-o", "--out", type=Path, action="append", default=[], help=text)
    add_script(parser, "the script to rehearse")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    for path in parsed.out:
        if not path.name.endswith((".json", ".json.gz", ".html", ".svg")):
            raise ValueError(f"-o {path}: pass a name that ends in .json, .json.gz, .html or .svg.")
    if parsed.fit is not None:
        return fit(parsed)
    if parsed.order:
        return compare_ranks(parsed)
    if len(parsed.rank) > 1:
        return rehearse_ranks(parsed)
    files = [path.absolute() for path in parsed.out]  # the script may change the current folder
    script, values = Script(parsed.script, parsed.args, module=parsed.module), _values(parsed.value)
    begun: list[bool] = []

    def function() -> None:
        begun.append(True)
        script.load()
        script.run()

    try:
        with redirect_stdout(sys.stderr):
            found = rehearse(
                function,
                ranks=parsed.ranks or (None if parsed.mesh else 1),
                mesh=parsed.mesh,
                rank=parsed.rank[0] if parsed.rank else 0,
                steps=parsed.steps,
                device_memory=parsed.device_memory,
                values=values,
                plans=parsed.plan,
            )
    except SystemExit as end:
        raise RuntimeError(
            f"{parsed.script} called sys.exit({end.code!r}) before the rehearsed steps ended."
        ) from None
    except Exception as error:
        # `main` prints errors of this package. Errors of the script are shown with a traceback.
        if not begun or type(error).__module__.startswith("graphviz_torch"):
            raise
        return show_error(error, script.file) or 1
    for path in files:
        if path.suffix == ".svg":
            draw_memory(found).render(outfile=path)
        elif path.suffix == ".html":
            to_html(found.graph, path)
        else:
            save(found.graph, path)
    if parsed.format == "order":
        say(json.dumps([each._asdict() for each in found.order]))
        return 0
    if parsed.format == "json":
        say(json.dumps(found.to_dict(tflops=parsed.tflops, gbytes=parsed.bandwidth)))
        return 0
    say(found)
    if parsed.tflops or parsed.bandwidth:
        least = found.seconds_at_least(tflops=parsed.tflops, gbytes=parsed.bandwidth)
        say(f"lower bound at the given speed and bandwidth: a step takes {least:.3g} s or more")
    return 0


def _mesh(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and size.isdecimal() and int(size) for name, _, size in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: pass names and sizes, such as dp=8,tp=8")
    return {name: int(size) for name, _, size in pairs}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: pass a number of bytes, such as 80GiB")
    power = (
        _UNITS[match[2]]
        if match[3] or not match[2]
        else 1000 ** round(math.log2(_UNITS[match[2]]) / 10)
    )
    return int(float(match[1]) * power)


def _figure(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: pass a number above 0")


def _values(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        line, _, value = text.rpartition("=")
        try:
            found[line] = float(value)
        except ValueError:
            raise ValueError(f"--value {text}: pass a line and a number, such as 30=0.5.") from None
    return found


def fit(parsed: argparse.Namespace) -> int:
    """Try plans, and print and draw their costs.

    Return 0 if a plan fits into memory, 1 if none does, and 2 if the unchanged script does not run.
    """
    if any(path.suffix != ".svg" for path in parsed.out):
        raise ValueError("-o with --fit draws the plans as SVG: pass a name that ends in .svg.")
    files, parsed.out = [path.absolute() for path in parsed.out], []
    size, rank = parsed.fit, (parsed.rank or [0])[0]
    mesh: list[int] = []  # sizes of the script's device mesh, which the first attempt fills in

    def attempt(changes: tuple[str, ...]) -> Trial | None:
        names = [each for each in changes if each not in parsed.other]
        args = [word for each in changes if each in parsed.other for word in shlex.split(each)]
        code, text = rehearse_in_process(parsed, rank, "json", names, args)
        if code:
            why = f": {text}" if changes and text else ""
            say(f"{' + '.join(changes) or 'the script'}: does not run{why}", file=sys.stderr)
            return None
        found = json.loads(text)
        if not changes and found["meshes"]:
            mesh.extend(max(found["meshes"], key=lambda sizes: len(list(sizes))))
        roles = tuple(found["at_peak"].items())
        trial = Trial(changes, found["peak_bytes"], found["wire_bytes"], found["flops"], roles)
        fits = ", fits" if trial.peak_bytes <= size else ""
        say(f"{trial.name}: {bytes_text(trial.peak_bytes)}{fits}", file=sys.stderr)
        return trial

    trials = try_plans(attempt, size, mesh=mesh, others=parsed.other)
    if not trials:
        return 2
    if parsed.format == "json":
        say(json.dumps([_row(each, size) for each in trials]))
    else:
        say(trial_table(trials, size))
    for path in files:
        draw_trials(trials, size).render(outfile=path)
    return 0 if any(each.peak_bytes <= size for each in trials) else 1


def _row(each: Trial, size: int) -> dict[str, object]:
    return {
        "plans": list(each.changes),
        "fits": each.peak_bytes <= size,
        "peak_bytes": each.peak_bytes,
        "wire_bytes": each.wire_bytes,
        "flops": each.flops,
    }


def rehearse_ranks(parsed: argparse.Namespace) -> int:
    """Rehearse each rank of `--rank` in a new process, and print all reports.

    Return 0, or the exit status of the first rehearsal that failed.
    """
    results: list[str] = []
    for rank in parsed.rank:
        code, text = rehearse_in_process(parsed, rank, parsed.format)
        if code:
            return code
        results.append(text)
    if parsed.format == "text":
        say("\n".join(results).rstrip())
    else:
        say(json.dumps([json.loads(text) for text in results]))
    return 0


def compare_ranks(parsed: argparse.Namespace) -> int:
    """Check that the ranks call the same collectives in the same order.

    Of ranks with the same role, only one is rehearsed. Return 1 if the ranks differ, else 0; if a
    rehearsal fails, return its exit status.
    """
    orders: dict[int, list[CollectiveCall]] = {}
    wanted = [*parsed.rank] or [0]
    while wanted:
        rank = wanted.pop(0)
        code, text = rehearse_in_process(parsed, rank, "order")
        if code:
            return code
        rows = [{**row, "ranks": tuple(row["ranks"])} for row in json.loads(text)]
        orders[rank] = [CollectiveCall(**row) for row in rows]
        if len(orders) == 1 and len(parsed.rank) < 2:
            wanted = representative_ranks(rank, orders[rank])
    found = compare_order(orders)
    for each in found:
        say(f"{each} [mismatched-collectives]")
    groups = {each.ranks for order in orders.values() for each in order}
    shared = [ranks for ranks in groups if len(orders.keys() & set(ranks)) > 1]
    same = "" if found else ": they call the same collectives, in the same order"
    common = f"{count_text(len(shared), 'process group')} shared by at least two of them"
    say(f"rehearsed {ranks_text(orders)}, with {common}{same}")
    return 1 if found else 0


def rehearse_in_process(
    parsed: argparse.Namespace,
    rank: int,
    format: str,
    plans: Sequence[str] = (),
    args: Sequence[str] = (),
) -> tuple[int, str]:
    """Rehearse one rank in a child process.

    Args:
        parsed: the arguments of this command, most of which are passed to the child.
        rank: the rank to rehearse.
        format: `--format` for the child.
        plans: further plans, in addition to those of the command line.
        args: further arguments of the script.

    Returns:
        The exit status of the child, and its output to stdout. If the child fails with `plans` or
        `args`, the last line of its stderr replaces the output.
    """
    if parsed.out:
        raise ValueError("-o writes the graph of one rank: pass one --rank.")
    given: list[str] = []
    for name in ("ranks", "device_memory", "steps", "tflops", "bandwidth"):
        value = getattr(parsed, name)
        given += [] if value is None else [f"--{name.replace('_', '-')}={value}"]
    given += [f"--plan={plan}" for plan in (*parsed.plan, *plans)]
    given += [f"--value={value}" for value in parsed.value]
    mesh = ",".join(f"{name}={size}" for name, size in parsed.mesh.items())
    given += [f"--mesh={mesh}"] * bool(mesh) + ["-m"] * parsed.module
    command = ["rehearse", *given, f"--rank={rank}", f"--format={format}"]
    done = subprocess.run(
        [sys.executable, "-m", "graphviz_torch", *command, parsed.script, *parsed.args, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if plans or args else None,
        text=True,
        check=False,
    )
    if done.returncode and done.stderr:
        return done.returncode, done.stderr.rstrip().rpartition("\n")[2]
    return done.returncode, done.stdout
