"""Compare with TorchLens: a forward and backward of each model is captured and drawn by both tools.

    python -m tests.bench.foreign.beside RESULTS.jsonl RECORDED.jsonl FOLDER [COUNT]

FOLDER has files that assign `MENAGERIE_ENTRIES`, and RECORDED.jsonl is the result of `run` for it:
COUNT recorded models are drawn with the seed 69. `torchlens` is installed, and `dot` is on the
path. Each model runs in two forks of this process, one for each tool. Times are CPU seconds. The
same Graphviz lays out both pictures.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchlens

from docs.sixteen import HEIGHT, WIDTH, size_and_text
from graphviz_torch import draw_graph, record
from graphviz_torch.render.dot.layout import layout

from . import checks
from .__main__ import forked, preload, read
from .sources import Entry, folder, loss_of

Facts = dict[str, Any]
_POINTS = {1: 9.5, 2: 14.0}  # size of the small print of ours, and of most text of theirs
_SECONDS = 20  # CPU seconds for one model and one tool


def ours(entry: Entry) -> Facts:
    """Record a forward and backward, and draw the picture."""
    training = _built(entry)
    made: Facts = {}

    def capture() -> None:
        with record(training.model) as recording:
            loss_of(training.forward()).backward()
        made["recording"], made["graph"] = recording, recording.graph

    return _measured(capture, lambda: draw_graph(made["recording"]).source)


def theirs(entry: Entry) -> Facts:
    """Trace a forward, log its backward, and draw the picture, with loops rolled up."""
    training = _built(entry)
    inputs = inspect.getclosurevars(training.forward).nonlocals["inputs"]
    named = inputs if isinstance(inputs, dict) else None
    given = None if named else list(inputs) if isinstance(inputs, (tuple, list)) else inputs
    made: Facts = {}

    def capture() -> None:
        made["log"] = log = torchlens.trace(training.model, given, input_kwargs=named)
        log.log_backward(loss_of([log[layer].out for layer in log.output_layers]))

    def draw() -> str:
        options = {"vis_save_only": True, "vis_fileformat": "svg", "vis_mode": "rolled"}
        picture = made["log"].draw(return_graph=True, **options)
        return picture if isinstance(picture, str) else picture.source

    return _measured(capture, draw)


def _built(entry: Entry) -> checks.Training:
    sink = os.open(os.devnull, os.O_RDWR)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    torch.manual_seed(0)
    return checks.Training(*entry.build())


def _measured(capture: Callable[[], None], draw: Callable[[], str]) -> Facts:
    start = time.process_time()
    facts: Facts = {"memory": checks.peak_memory(capture)}
    facts["capture"] = time.process_time() - start
    start = time.process_time()
    try:
        dot = draw()
        facts["dot"] = time.process_time() - start
        before = _seconds_of_children()
        svg = layout(dot, "svg", timeout=120).decode()
        facts["layout"] = _seconds_of_children() - before
        facts["size"] = size_and_text(svg)[:2]
    except Exception as error:
        facts["picture_error"] = f"{type(error).__name__}: {error}"[:200]
    return facts


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: list[tuple[str, Facts, Facts]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of both tools."""
    sides = [[row[1] for row in rows], [row[2] for row in rows]]
    both = [row for row in rows if "capture" in row[1] and "capture" in row[2]]
    drawn = [row for row in both if "size" in row[1] and "size" in row[2]]
    yield f"| {len(rows)} models | graphviz_torch | TorchLens {torchlens.__version__} |"
    yield "|---|---|---|"
    captured = [sum("capture" in facts for facts in side) for side in sides]
    yield "| captured, forward and backward | " + " | ".join(map(str, captured)) + " |"
    pictures = [sum("size" in facts for facts in side) for side in sides]
    yield "| drawn | " + " | ".join(map(str, pictures)) + " |"
    for title, key, factor, unit, of in (
        ("capture, median", "capture", 1e3, "ms", both),
        ("additional memory of the capture, median", "memory", 2**-20, "MiB", both),
        ("DOT text, median", "dot", 1e3, "ms", drawn),
        ("layout, median", "layout", 1e3, "ms", drawn),
    ):
        values = [statistics.median(row[side][key] for row in of) * factor for side in (1, 2)]
        yield f"| {title} | {values[0]:,.0f} {unit} | {values[1]:,.0f} {unit} |"
    fits = [
        sum(_height_of_text(row[side]["size"], _POINTS[side]) >= checks.SMALLEST for row in drawn)
        for side in (1, 2)
    ]
    yield f"| pictures that fit a page, of {len(drawn)} | {fits[0]} | {fits[1]} |"
    heights = [statistics.median(row[side]["size"][1] for row in drawn) for side in (1, 2)]
    yield f"| height of the picture, median | {heights[0]:,.0f} px | {heights[1]:,.0f} px |"


def _height_of_text(size: tuple[float, float], points: float) -> float:
    """Return the height of a text if its picture is scaled to a page, in pixels."""
    width, height = size
    return min(1, WIDTH / width, HEIGHT / height) * points * 4 / 3


def main(results: Path, recorded: Path, models: Path, count: int) -> None:
    """Run both tools on models drawn by lot, and print the table."""
    preload()
    known = sorted(name for (_, name), row in read(recorded).items() if "nodes" in row)
    random.Random(69).shuffle(known)
    by_name = {entry.name: entry for entry in folder(models)}
    entries = [by_name[name] for name in known if name in by_name]
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    for entry in entries[len(rows) : count]:
        pair = [
            forked(lambda entry=entry, tool=tool: tool(entry), _SECONDS) for tool in (ours, theirs)
        ]
        rows.append((entry.name, *pair))
        with results.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    gc.freeze()
    main(*map(Path, sys.argv[1:4]), int(*sys.argv[4:] or ["100"]))
