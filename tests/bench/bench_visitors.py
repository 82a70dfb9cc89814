"""Measure how long visitors of the app wait if all come at once, each with another expression.

Run `python -m tests.bench.bench_visitors [50]`. The number is that of sessions, which use the app
without a browser. With `--browser`, they are pages of one browser on this machine, which also has
to draw them. Without it, a further visitor enters a text that is refused; the time until the answer
is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from app.jobs import job as jobs
from app.jobs.values import Choice, Run
from tests.support.app_pages import page
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.visitors import served, visit_at_once


def in_a_browser(count: int) -> list[float]:
    """Return the seconds until each page of a browser shows its answer."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with served(Path(folder) / "log") as address:
            seconds = visit_at_once(browser, address, count)
        browser.close()
    return seconds


def refused(program: str) -> float:
    """Return the seconds until a page refuses a text."""
    began = time.perf_counter()
    app = page(source="Your own expression", program=program)
    assert app.error
    return time.perf_counter() - began


def in_jobs(count: int) -> list[float]:
    """Return the seconds until each visitor's job has answered; check the answers."""
    refused("lambda: 1")  # imports the modules of a page
    seconds: list[float] = []
    jobs.run("math:sqrt", 4, seconds=120)  # the server then has loaded torch
    began = time.perf_counter()

    def visit(number: int) -> None:
        choice = Choice("expression", "sim1", program=f"y = sum(x * {number})", inputs="x = 1, 1")
        call = ".backward:play", choice, True
        with jobs.Job[Run](*call, seconds=20, visitor=f"{number}") as job:
            for _ in job:
                pass
        assert job.result.opened is not None
        [leaf] = [node for node in job.result.opened.graph.nodes if node.leaf]
        [stats] = leaf.grad_outputs
        assert stats is not None
        assert stats.values == (number, number)
        seconds.append(time.perf_counter() - began)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(1, count + 1)]
    for thread in threads:
        thread.start()
    for text in ("lambda: 1", "__import__('os')"):
        print(f"{text} is refused after {refused(text):.1f} s, {len(seconds)} have their answers")
    for thread in threads:
        thread.join()
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?", default=50)
    parser.add_argument("--browser", action="store_true")
    options = parser.parse_args()
    found = (in_a_browser if options.browser else in_jobs)(options.count)
    print(f"{len(found)} of {options.count} visitors at once have their own answer: ", end="")
    print(f"median {statistics.median(found):.1f} s, last {max(found):.1f} s")
