"""The command `graphviz-torch`: draw, read, judge and compare saved graphs.

Exit codes: 0 done; 1 `find` found an error, or `diff` a difference; 2 it could not be done.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ...comparison.diff import GRADIENT_TOLERANCE, TIME_TOLERANCE, Mark, diff
from ...findings import find, find_across
from ...graph import Finding, Graph
from ...graph.json import load

_DONE, _FOUND, _FAILED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; `arguments` default to those of the process. Returns the exit code."""
    parsed = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except BrokenPipeError:  # the reader, a pager say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DONE
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"graphviz-torch: {error}", file=sys.stderr)
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "graphviz-torch", description="Draw, read, judge and compare saved graphs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], int], *files: str) -> argparse.ArgumentParser:
        says = (run.__doc__ or "").strip()
        added = commands.add_parser(run.__name__.strip("_"), help=says, description=says)
        added.set_defaults(run=run)
        for name in files:
            added.add_argument(name, type=Path, metavar=name.upper(), help=_HELP[name])
        return added

    command(_draw, "file").add_argument("-o", "--out", type=Path, help="default: FILE.svg")
    command(_text, "file")
    command(_html, "file").add_argument("-o", "--out", type=Path, help="default: FILE.html")
    added = command(_tensorboard, "file", "logdir")
    added.add_argument("--tag", default="graph", help="the name in the Graphs tab")
    added.add_argument("--step", type=int, default=0)
    added = command(_find)
    added.add_argument("files", type=Path, nargs="+", metavar="FILE", help=_HELP["files"])
    added.add_argument("--ranks", action="store_true", help="the files are one for each rank")
    added = command(_diff, "a", "b")
    added.add_argument("-o", "--out", type=Path, help="draw both in one picture, marked")
    for name, default in (("gradient", GRADIENT_TOLERANCE), ("time", TIME_TOLERANCE)):
        says = f"relative difference of a {name} that is none (default {default:g}; inf: ignore)"
        added.add_argument(f"--{name}-tolerance", type=_tolerance, default=default, help=says)
    return parser


_HELP = {
    "file": "a graph that Graph.save wrote, .json or .json.gz",
    "files": "saved graphs; those before the last are the steps before it",
    "logdir": "where `tensorboard --logdir` looks",
    "a": "the graph before",
    "b": "the graph after",
}


def _draw(parsed: argparse.Namespace) -> int:
    """Draw a graph as svg, png, pdf or dot, with its findings marked."""
    graph = load(parsed.file)
    return _picture(graph, parsed.out or _beside(parsed.file, ".svg"), find(graph), {})


def _text(parsed: argparse.Namespace) -> int:
    """Print a graph."""
    from ...render.text import to_text

    print(to_text(load(parsed.file)).rstrip())
    return _DONE


def _html(parsed: argparse.Namespace) -> int:
    """Write one HTML page with the interactive view."""
    from ...render.html import to_html

    graph, out = load(parsed.file), parsed.out or _beside(parsed.file, ".html")
    to_html(graph, out, findings=find(graph), title=parsed.file.name)
    print(out)
    return _DONE


def _tensorboard(parsed: argparse.Namespace) -> int:
    """Write a graph for TensorBoard's Graphs tab."""
    from ...tensorboard.writer import to_tensorboard

    to_tensorboard(load(parsed.file), parsed.logdir, tag=parsed.tag, step=parsed.step)
    print(f"tensorboard --logdir {parsed.logdir}")
    return _DONE


def _find(parsed: argparse.Namespace) -> int:
    """Say what is wrong in a recording; exit code 1 if there is an error among it."""
    *previous, last = [load(file) for file in parsed.files]
    found = find_across([*previous, last]) if parsed.ranks else find(last, previous)
    for finding in found:
        print(_describe(finding))
    counts = Counter[str](finding.severity for finding in found)
    words = (("error", "error"), ("warning", "warning"), ("info", "note"))
    totals = [f"{n} {word}{'' if n == 1 else 's'}" for key, word in words if (n := counts[key])]
    print(", ".join(totals) or "nothing found")
    return _FOUND if counts["error"] else _DONE


def _diff(parsed: argparse.Namespace) -> int:
    """Say how two graphs differ; exit code 0 if they do not, 1 if they do."""
    difference = diff(
        load(parsed.a),
        load(parsed.b),
        gradient_tolerance=parsed.gradient_tolerance,
        time_tolerance=parsed.time_tolerance,
    )
    print(difference.to_text())
    if parsed.out is not None:
        _picture(difference.union(), parsed.out, [], difference.marks())
    return _FOUND if difference else _DONE


def _picture(graph: Graph, out: Path, found: Sequence[Finding], marks: dict[int, Mark]) -> int:
    from ...render.draw import draw_graph

    print(draw_graph(graph, findings=found, marks=marks).render(outfile=out))
    return _DONE


def _describe(finding: Finding) -> str:
    advice = f"\n    {finding.advice}" if finding.advice else ""
    return f"{finding.severity}: {finding.message} [{finding.rule}]{advice}"


def _beside(file: Path, suffix: str) -> Path:
    """The file's name without ".json" or ".json.gz", with another ending, in the same folder."""
    return file.with_name(file.name.removesuffix(".gz").removesuffix(".json") + suffix)


def _tolerance(text: str) -> float:
    number = float(text)
    if math.isnan(number) or number < 0:
        raise argparse.ArgumentTypeError(
            f"{text} is no relative difference: pass 0 or more, or inf."
        )
    return number
