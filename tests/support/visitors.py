"""Serve the app, and visit it with a browser."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

ROOT = Path(__file__).parents[2]
SIZES = {390: 844, 1280: 900, 1920: 1080}
WAIT = 120_000  # milliseconds; on a busy machine, pages are slow
# True once the script has run, all parts and the style are loaded, and no animation runs.
STILL = """() => !document.querySelector('[data-stale="true"], [data-testid="stSkeleton"]')
    && [...document.querySelectorAll("style")].some((each) => each.textContent.includes("stMain"))
    && document.getAnimations().every((each) => each.playState !== "running"
        || each.effect.getComputedTiming().endTime > 1e9)"""

# Sets `window.runs` when the script runs again.
WATCH = """() => {
    window.runs = false
    new MutationObserver(() => { window.runs = true }).observe(
        document.querySelector(".stApp"), { attributeFilter: ["data-test-script-state"] })
}"""


@contextmanager
def served(log: Path, checkout: Path = ROOT) -> Iterator[str]:
    """Start the app on a free port, as the README starts it, and yield its address.

    Args:
        log: file for the server's output.
        checkout: the checkout whose app is started.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", f"--server.port={port}"]
    command.append("--server.fileWatcherType=none")
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with log.open("w") as written:
        process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=written, stderr=written
        )
    url = f"http://localhost:{port}"
    try:
        for _ in range(1500):
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.04)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


class Visitor:
    """A page of the app, with the errors that occurred on it.

    Args:
        browser: the browser in which the page is opened.
        url: address of the app.
        width: width of the window, in CSS pixels.
        theme: "light" or "dark".
        page: a page that has parsed the app's code; without one, the visitor has its own.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        width: int = 1280,
        theme: str = "light",
        page: Page | None = None,
    ) -> None:
        self.url, self._shared = url, page is not None
        self.page = page or browser.new_page()
        self.page.set_viewport_size({"width": width, "height": SIZES[width]})
        # Each frame of an animation is drawn by the CPU.
        self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        self.page.set_default_timeout(WAIT)
        self.wrong: list[str] = []
        self._handlers: dict[Any, Any] = {
            "pageerror": lambda error: self.wrong.append(str(error)),
            "request": self._asked,
            "console": self._told,
        }
        for event, handler in self._handlers.items():
            self.page.on(event, handler)

    def _asked(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if not url.startswith((self.url, "data:", "blob:", self.url.replace("http", "ws"))):
            self.wrong.append(f"asked the network for {url}")

    def _told(self, message: object) -> None:
        if message.type in ("warning", "error"):  # type: ignore[attr-defined]
            self.wrong.append(f"the console says {message.text}")  # type: ignore[attr-defined]

    def open(self, path: str = "", **query: str) -> Page:
        """Open a page and wait until it is complete."""
        mark = "&" if "?" in path else "?"
        self.page.goto(f"{self.url}/{path}{mark}{urlencode(query)}")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until the script has run, and assert that no error occurred."""
        expect(self.page.locator("h1")).to_be_visible(timeout=WAIT)
        idle = self.page.locator('.stApp[data-test-script-state="notRunning"]')
        expect(idle).to_be_visible(timeout=WAIT)
        expect(self.page.get_by_test_id("stException")).to_have_count(0)
        assert not self.wrong

    def close(self) -> None:
        """Close the page unless others use it, and assert that no error occurred."""
        assert not self.wrong
        for event, handler in self._handlers.items():
            self.page.remove_listener(event, handler)
        if not self._shared:
            self.page.close()

    def press(self, name: str) -> None:
        """Press a button, and wait for the result."""
        self.page.evaluate(WATCH)
        self.page.get_by_role("button", name=name, exact=True).click()
        with suppress(PlaywrightTimeoutError):  # some controls do not run the script
            self.page.wait_for_function("window.runs", timeout=5_000)
        self.settle()
        self.page.wait_for_function(STILL)


def visit_at_once(address: str, count: int) -> list[float]:
    """Open `count` sessions of the app at once without a browser, each with its own program.

    All of them must get the right result, and none a result of another session.

    Args:
        address: address of the app.
        count: number of sessions.

    Returns:
        For each session, the seconds until the result had arrived.
    """
    began = time.perf_counter()

    def visit(number: int) -> float:
        query = {
            "source": "Your own expression",
            "program": f"y = sum(x * {number})",
            "inputs": f"x = {number}, 1",
            "backward": "1",
            "device": "CPU" if number % 2 else "Simulated accelerator",
        }
        url = f"{address.replace('http', 'ws', 1)}/_stcore/stream"
        received, seconds, ended = b"", 0.0, False
        with connect(url, max_size=None) as session:
            asked = BackMsg(rerun_script={"query_string": urlencode(query)})
            session.send(asked.SerializeToString())
            while not (seconds and ended):
                received += (data := session.recv(timeout=WAIT / 1000))
                ended = ForwardMsg.FromString(data).WhichOneof("type") == "script_finished"
                if not seconds and b"x.grad = [" in data:
                    seconds = time.perf_counter() - began
        results = set(re.findall(rb"x\.grad = \[(\d+), \1\]", received))
        assert results == {str(number).encode()}
        copies = b"**1 copy** in forward (8 B), **1 copy** in backward (8 B)."
        assert (copies in received) == (number % 2 == 0)
        return seconds

    with ThreadPoolExecutor(count) as sessions:
        return list(sessions.map(visit, range(1, count + 1)))
