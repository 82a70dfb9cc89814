"""Measure the app: the start, the worked example, and a recording of 10,000 nodes.

Run `python -m tests.bench.bench_app [FOLDER]`. FOLDER is the checkout whose app is started; by
default it is this one. CPU seconds are less affected by other processes than wall-clock seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from playwright.sync_api import sync_playwright
from streamlit.testing.v1 import AppTest

from app.jobs import job as jobs
from app.jobs import recordings
from app.jobs.values import Choice
from graphviz_torch import Graph, record
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.visitors import WAIT, served

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PLAY = "app.jobs.backward:play"
PROGRAM = "a = x + 2\nb = a ** 2\nc = b + 3\ny = mean(c)"


def timed(what: str, function: Callable[..., T], *arguments: object) -> T:
    """Call a function, print how long it took, and return its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function(*arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:50} {wall:7.3f} s, CPU of this process {cpu:7.3f} s")
    return result


def large(nodes: int) -> Graph:
    """Return the recorded graph of a chain of small modules with about `nodes` nodes."""
    model = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4))
            for _ in range(nodes // 8)
        )
    )
    with record(model) as recording:
        model(torch.randn(2, 4)).sum().backward()
    return recording.graph


def processes(root: int) -> dict[int, float]:
    """Return the CPU seconds of a process and its descendants, by process id; Linux only."""
    parents, seconds = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        seconds[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return {each: seconds[each] for each in family if each in seconds}


def cold(checkout: Path) -> None:
    """Start the app; measure until the browser shows the first graph and the first gradient."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(WAIT)
        start, before = time.perf_counter(), processes(os.getpid())

        def say(what: str) -> None:
            now = processes(os.getpid())
            wall, spent = time.perf_counter() - start, sum(now.values()) - sum(before.values())
            ours = sum(now[each] for each in now.keys() - before.keys() if not is_browser(each))
            print(f"{what:50} {wall:7.3f} s, CPU of the app {ours:.2f} s, of all {spent:.2f} s")

        with served(Path(folder) / "log", checkout) as address:
            say("cold: the server answers")
            page.goto(address)
            page.locator(".graph svg .card").first.wait_for()
            say("cold: the first graph is drawn")
            page.get_by_role("button", name="Run backward", exact=True).click()
            page.get_by_text("x.grad = [2, 2.667, 3.333]").first.wait_for()
            say("cold: the first gradient is there")
        browser.close()


def is_browser(process: int) -> bool:
    """Return whether a process was started by the browser."""
    try:
        return "chrom" in Path(f"/proc/{process}/cmdline").read_text().partition("\0")[0]
    except OSError:
        return False


if __name__ == "__main__":
    cold(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    main = AppTest.from_file(str(ROOT / "app" / "frame.py"), default_timeout=120)
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
