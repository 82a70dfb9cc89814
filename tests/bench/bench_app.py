"""How long the app takes: the worked example again, and a recording of 10,000 nodes.

Run `python -m tests.bench.bench_app`. Seconds of one process, and of its CPU, which a busy machine
leaves as it is. The browser's part is in `bench_view.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from streamlit.testing.v1 import AppTest

from app.jobs import job as jobs
from app.jobs import recordings
from app.jobs.values import Choice
from graphviz_torch import Graph, record

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PLAY = "app.jobs.backward:play"
PROGRAM = "a = x + 2\nb = a ** 2\nc = b + 3\ny = mean(c)"


def timed(what: str, function: Callable[..., T], *arguments: object) -> T:
    """The result, after printing how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function(*arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:50} {wall:7.3f} s, CPU of this process {cpu:7.3f} s")
    return result


def large(nodes: int) -> Graph:
    """A recording of a chain of small modules with about so many nodes."""
    model = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4))
            for _ in range(nodes // 8)
        )
    )
    with record(model) as recording:
        model(torch.randn(2, 4)).sum().backward()
    return recording.graph


if __name__ == "__main__":
    main = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    timed("first page, the server's start included", main.run)
    choice = Choice("expression", "sim1", program=PROGRAM, inputs="x = 1, 2, 3")
    jobs.run(PLAY, choice, False)
    for _ in range(3):
        timed("worked example: forward and backward in a job", jobs.run, PLAY, choice, True)
    [button] = [button for button in main.button if button.label == "Run backward"]
    timed("worked example: the whole page again", lambda: button.click().run())
    graph = large(10_000)
    print(f"{len(graph.nodes):,} nodes")
    data = recordings.as_json(graph)
    what = f"reading, judging and packing {len(data) / 1e6:.1f} MB in a job"
    opened = timed(what, jobs.run, "app.jobs.recordings:read", data, "a.json")
    print(f"payload: {len(opened.payload) / 1e3:.0f} KB")
