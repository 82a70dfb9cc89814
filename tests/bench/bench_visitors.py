"""Measure how long visitors of the app wait if all come at once, each with another expression.

Run `python -m tests.bench.bench_visitors [50]`. The number is that of visitors, which run programs
without a page. With `--server`, they are sessions of the served app, which also makes their pages.
Without it, a further visitor enters a text that is refused; the time until the answer is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from app.jobs import job as jobs
from app.jobs.values import Choice, Run
from tests.support.app_pages import page
from tests.support.visitors import served, visit_at_once


def in_sessions(count: int) -> list[float]:
    """Return the seconds until each session of the served app has its answer."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "log") as address:
        return visit_at_once(address, count)


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
    parser.add_argument("--server", action="store_true")
    options = parser.parse_args()
    found = (in_sessions if options.server else in_jobs)(options.count)
    print(f"{len(found)} of {options.count} visitors at once have their own answer: ", end="")
    print(f"median {statistics.median(found):.1f} s, last {max(found):.1f} s")
