"""The app in a real browser: every page, a click that selects, many visitors, both themes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGES = ["", "explore", "training", "devices", "checkpoints"]
WAIT = 120_000  # ms: a busy machine is no failure

expect.set_options(timeout=WAIT)
pytestmark = pytest.mark.skipif(not os.path.exists(CHROMIUM), reason="there is no chromium here")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The app, as the README starts it, on a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", f"--server.port={port}"]
    process = subprocess.Popen(
        [*command, "--server.fileWatcherType=none"], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    url = f"http://localhost:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=1)
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visitor:
    """A page of the app in a context of its own, and what went wrong on it."""

    def __init__(self, browser: Browser, url: str, width: int = 1280, theme: str = "light") -> None:
        self.url = url
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,  # type: ignore[arg-type]
            accept_downloads=True,
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)

    def _asked(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if not url.startswith((self.url, "data:", "blob:", self.url.replace("http", "ws"))):
            self.wrong.append(f"asked the network for {url}")

    def open(self, path: str = "", **query: str) -> Page:
        """Open a page and wait until it is complete."""
        self.page.goto(f"{self.url}/{path}?{urlencode(query)}")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until the script has run, and find nothing wrong."""
        expect(self.page.locator("h1")).to_be_visible(timeout=WAIT)
        idle = self.page.locator('.stApp[data-test-script-state="notRunning"]')
        expect(idle).to_be_visible(timeout=WAIT)
        expect(self.page.get_by_test_id("stException")).to_have_count(0)
        assert not self.wrong

    def press(self, name: str) -> None:
        """Press a button and wait for what comes of it."""
        self.page.get_by_role("button", name=name, exact=True).click()
        self.page.wait_for_timeout(200)
        self.settle()


@pytest.fixture
def visitor(browser: Browser, address: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, address)
    yield visitor
    assert not visitor.wrong
    visitor.context.close()


def test_run_backward_shows_the_gradient_and_the_transfers(visitor: Visitor) -> None:
    page = visitor.open()
    expect(page.get_by_text("2.6667")).to_have_count(0)
    visitor.press("Run backward")
    expect(page.get_by_text("x.grad = [2.0000, 2.6667, 3.3333]")).to_be_visible()
    expect(
        page.get_by_text("1 copy in forward (12 B) and 1 copy in backward (12 B).")
    ).to_be_visible()
    table = page.get_by_test_id("stDataFrame").last
    table.scroll_into_view_if_needed()
    for text in ("HtoD", "DtoH"):
        expect(table.locator("td", has_text=text)).to_be_attached()
    expect(page.locator(".graph svg [data-item]").first).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_walk_through_every_page_meets_no_error(
    browser: Browser, address: str, width: int, theme: str
) -> None:
    visitor = Visitor(browser, address, width, theme)
    for path in PAGES:
        page = visitor.open(path)
        page.wait_for_timeout(500)
        wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= width, f"{path or 'run'} is {wide} px wide"
    assert not visitor.wrong
    visitor.context.close()


def test_the_link_of_a_page_shows_the_same_again(visitor: Visitor, browser: Browser) -> None:
    page = visitor.open()
    page.get_by_role("radio", name="Your own expression").click()
    visitor.settle()
    page.get_by_label("Expression", exact=True).fill("y = sum(x * x * 5)")
    page.get_by_label("Inputs", exact=True).fill("x = 1, 2")
    page.get_by_label("Expression", exact=True).focus()
    page.keyboard.press("Control+Enter")
    visitor.settle()
    visitor.press("Run backward")
    expect(page.get_by_text("x.grad = [10.0000, 20.0000]")).to_be_visible()
    other = Visitor(browser, visitor.url)
    other.page.goto(page.url)
    other.settle()
    expect(other.page.get_by_text("x.grad = [10.0000, 20.0000]")).to_be_visible()
    other.context.close()


def test_a_click_on_a_node_selects_its_row_and_a_row_its_node(visitor: Visitor) -> None:
    page = visitor.open(backward="1")
    page.locator('.graph svg [data-item="1"]').first.click()
    expect(page).to_have_url(re.compile("node=1"))
    visitor.settle()
    table = page.get_by_test_id("stDataFrame").first
    table.evaluate("element => element.scrollIntoView({ block: 'center' })")
    box = table.locator("canvas").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 15, box["y"] + 52)  # the box before the first row
    expect(page).to_have_url(re.compile("node=0"))
    visitor.settle()
    expect(page.locator(".graph svg .selected").first).to_be_visible()


def test_the_downloads_are_what_their_names_say(visitor: Visitor) -> None:
    page = visitor.open(backward="1", device="CPU")
    starts = {
        "SVG": b"<", "PNG": b"\x89PNG", "PDF": b"%PDF", "DOT": b"digraph", "JSON": b"{",
        "HTML": b"<!doctype html>", "TensorBoard": b"PK", "Findings": b"[",
    }  # fmt: skip
    for name, start in starts.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).last.click()
        assert Path(download.value.path()).read_bytes().startswith(start), name


def test_a_recording_that_was_downloaded_can_be_opened_again(
    visitor: Visitor, tmp_path: Path
) -> None:
    page = visitor.open(backward="1")
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON", exact=True).click()
    path = tmp_path / "graph.json"
    download.value.save_as(path)
    page = visitor.open("explore", open="A file of mine")
    page.locator("input[type=file]").set_input_files(path)
    expect(page.get_by_text("graph.json").first).to_be_visible()
    page.wait_for_timeout(300)
    visitor.settle()
    expect(page.locator(".graph svg [data-item]").first).to_be_visible()
    hostile = tmp_path / "hostile.json"
    hostile.write_text('{"format": "<script>alert(1)</script>"}')
    page.locator("input[type=file]").set_input_files(hostile)
    expect(page.get_by_test_id("stAlert").first).to_contain_text("hostile.json")


def test_the_page_is_used_by_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.open()
    button = page.get_by_role("button", name="Run backward", exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_text("x.grad = [2.0000, 2.6667, 3.3333]")).to_be_visible()


def test_a_long_training_shows_progress_and_can_be_stopped(visitor: Visitor) -> None:
    query = urlencode({"depth": 24, "steps": 300, "device": "Simulated accelerator"})
    visitor.page.goto(f"{visitor.url}/training?{query}")
    main = visitor.page.get_by_test_id("stMain")
    stop = main.get_by_role("button", name="Stop", exact=True)
    expect(visitor.page.get_by_text(re.compile(r"step \d+ of 300")).first).to_be_visible(
        timeout=WAIT
    )
    stop.click()
    expect(visitor.page.get_by_text("Stopped")).to_be_visible(timeout=WAIT)
    visitor.settle()
    visitor.open("training", steps="3")
    expect(visitor.page.get_by_text("Stopped")).to_have_count(0)


def test_twenty_visitors_at_once_each_get_their_own_answer(browser: Browser, address: str) -> None:
    first = Visitor(browser, address)
    pages = [first.page, *(first.context.new_page() for _ in range(19))]
    for number, page in enumerate(pages, 1):
        query = {
            "source": "Your own expression",
            "program": f"y = sum(x * {number})",
            "inputs": f"x = {number}, 1",
            "backward": "1",
            "device": "CPU" if number % 2 else "Simulated accelerator",
        }
        page.goto(f"{address}/?{urlencode(query)}", wait_until="commit")
    for number, page in enumerate(pages, 1):
        expected = f"x.grad = [{number}.0000, {number}.0000]"
        expect(page.get_by_text(expected)).to_be_visible(timeout=WAIT)
        copies = page.get_by_text("1 copy in forward (8 B) and 1 copy in backward (8 B).")
        expect(copies).to_have_count(1 - number % 2)
    first.context.close()
