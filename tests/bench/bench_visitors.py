"""How long visitors of the app wait who come all at once.

Run `python -m tests.bench.bench_visitors [50]`. Each has a page of one browser and an expression of
their own, and must see the answer to it. The browser draws so many pages on this machine too: its
work is in the figures.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.visitors import served, visit_at_once


def main(count: int) -> None:
    """Visit, and print the figures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with served(Path(folder) / "log") as address:
            seconds = visit_at_once(browser, address, count)
        browser.close()
    middle, last = statistics.median(seconds), max(seconds)
    print(f"{count} visitors at once, each with their own answer: median {middle:.1f} s, ", end="")
    print(f"first {min(seconds):.1f} s, last {last:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
