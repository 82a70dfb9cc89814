"""Test the app in a browser: all pages, both themes, several visitors, hostile files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from app.panels.language import chinese
from app.views.explore import TABS
from app.views.training import MAX_DEPTH, MAX_STEPS
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.visitors import SIZES, STILL, WAIT, Visitor, served, visit_at_once

PAGES = ["", "explore", "training", "devices", "processes"]
# Links to pages that are parts of others now: where they lead with what they chose.
MOVED = {
    "fit?fit+ranks=16": ("Processes", "Will it fit?"),
    "checkpoints?into=CNN": ("Devices", "Checkpoints"),
}
STATES = ["?backward=1", "?source=A+model"]
TABLES = [
    "?source=A+model&model=DataParallel&device=8+simulated+accelerators&backward=1",
    *(f"explore?{urlencode({'tab': tab})}" for tab in TABS[1:]),
]
# The tables, and the cells, that are wider than the place that they have.
CUT = """() => {
  const every = (root) => [...root.querySelectorAll("*")].flatMap(
    (each) => (each.shadowRoot ? [each, ...every(each.shadowRoot)] : [each]));
  return every(document)
    .filter((each) => each.matches(".linked, [data-testid=stTable], th, td"))
    .filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => `${each.textContent.slice(0, 80)}: ${each.scrollWidth} > ${each.clientWidth}`);
}"""
# Nothing is wider than its place: charts and tables learn the width of the window after it.
FITS = f"""(width) => document.querySelector("[data-testid=stMain]").scrollWidth <= width
    && (width <= 390 || !({CUT})().length)"""
# The page has taken on the theme that the system has changed to.
THEME = """(theme) => {
  const colors = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
  return (Number(colors.match(/\\d+/)[0]) < 128) === (theme === "dark");
}"""
EXAMPLE = "x.grad = [2, 2.667, 3.333]"
OURS = "[data-testid=stMain]"  # all but Streamlit's own bar and menu
RULES = {
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "cat.semantics"],
    },
    "rules": {"landmark-unique": {"enabled": False}},  # a view for each rank
    "resultTypes": ["violations"],
}
RULES_OF_COLORS = {"runOnly": ["color-contrast", "link-in-text-block"]}  # all that a theme changes
expect.set_options(timeout=WAIT)
pytestmark = pytest.mark.skipif(not os.path.exists(CHROMIUM), reason="there is no chromium here")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the server."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def address(log: Path) -> Iterator[str]:
    """The address of the app, on a free port."""
    with served(log) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def window(browser: Browser) -> Page:
    """A page that parses the app's code once."""
    return browser.new_page()


@pytest.fixture
def visitor(browser: Browser, address: str, window: Page) -> Iterator[Visitor]:
    visitor = Visitor(browser, address, page=window)
    yield visitor
    visitor.close()


def box(part: Locator) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom in CSS pixels of the window."""
    found = part.bounding_box()
    assert found is not None
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


def parts(page: Page) -> dict[str, Locator]:
    """Return the parts of the lesson after backward ran."""
    return {
        "program": page.get_by_role("list", name="The program"),
        "gradient": page.get_by_text(EXAMPLE),
        "graph": page.locator(".graph"),
        "copies": page.get_by_role("table", name="Copies between devices"),
        "order": page.get_by_role("group", name="Order of steps and copies"),
    }


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1920, "dark")])
def test_after_run_backward_the_whole_lesson_stands_on_one_screen(
    browser: Browser, address: str, window: Page, width: int, theme: str
) -> None:
    visitor = Visitor(browser, address, width, theme, window)
    page = visitor.open()
    visitor.press("Run backward")
    found = parts(page)
    for name, part in found.items():
        expect(part).to_be_visible()
        left, top, right, bottom = box(part)
        assert left >= 0, name
        assert top >= 0, name
        assert right <= width, name
        assert bottom <= SIZES[width], name
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollTop") == 0
    frame = box(found["graph"])
    nodes = [box(node) for node in page.locator(".graph svg .card").all()]
    assert len(nodes) == 6
    for left, top, right, bottom in nodes:
        assert frame[0] <= left < right <= frame[2]
        assert frame[1] <= top < bottom <= frame[3]
        assert bottom - top >= 20  # three lines can be read
    columns = ["direction", "from → to", "bytes", "phase", "node", "line"]
    copies = [["HtoD", "cpu → sim:0", "12 B", "forward", "x_there", "script.py:6"],
              ["DtoH", "sim:0 → cpu", "12 B", "backward", "x_there", "script.py:6"]]  # fmt: skip
    for row, texts in zip(found["copies"].locator("tr").all(), [columns, *copies], strict=True):
        for text in texts:
            assert box(row.get_by_text(text, exact=True))[2] <= width, text
    assert page.evaluate(CUT) == []
    used = max(box(part)[2] for part in found.values()) - min(box(p)[0] for p in found.values())
    assert used >= 0.9 * width
    high = max(box(part)[3] for part in found.values()) - min(box(p)[1] for p in found.values())
    assert high >= 0.7 * SIZES[width]
    assert max(n[3] for n in nodes) - min(n[1] for n in nodes) >= 0.45 * SIZES[width]
    visitor.close()


def test_on_a_phone_the_lesson_stands_in_reading_order_and_the_graph_in_the_middle(
    browser: Browser, address: str, window: Page
) -> None:
    visitor = Visitor(browser, address, 390, page=window)
    page = visitor.open()
    visitor.press("Run backward")
    found = parts(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(THEME, arg=theme)
        page.wait_for_function(STILL)
        tops = [box(found[name])[1] for name in ("program", "gradient", "graph", "copies", "order")]
        assert tops == sorted(tops)
        left, _, right, _ = box(found["graph"])
        nodes = [box(node) for node in page.locator(".graph svg .card").all()]
        middle = (min(n[0] for n in nodes) + max(n[2] for n in nodes)) / 2
        assert abs(middle - (left + right) / 2) < 0.1 * (right - left)
        assert all(left <= n[0] and n[2] <= right for n in nodes)
        wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= 390
    visitor.close()


def test_the_lesson_in_chinese_has_a_link_and_stands_on_one_screen(visitor: Visitor) -> None:
    page = visitor.open(backward="1")
    page.get_by_role("radio", name="中文").click()
    title = page.get_by_role("heading", name=chinese()["What does autograd do?"])
    expect(title).to_be_visible()
    visitor.settle()
    page.goto(page.url)
    expect(title).to_be_visible()
    visitor.settle()
    found = {
        "program": page.get_by_role("list", name=chinese()["The program"]),
        "gradient": page.get_by_text(EXAMPLE),
        "graph": page.locator(".graph"),
        "copies": page.get_by_role("table", name=chinese()["Copies between devices"]),
    }
    for name, part in found.items():
        expect(part).to_be_visible()
        _, _, right, bottom = box(part)
        assert right <= 1280, name
        assert bottom <= SIZES[1280], name
    assert page.evaluate(CUT) == []


def test_a_click_in_any_part_marks_the_same_node_in_all(visitor: Visitor) -> None:
    page = visitor.open(backward="1")
    found = parts(page)
    clicks = {
        "program": found["program"].get_by_text("x_there = x.to(device)"),
        "copies": found["copies"].get_by_text("DtoH", exact=True),
        "order": found["order"].locator("[data-node='1'] path").first,
        "graph": page.locator('.graph svg [data-item="1"]').first,
    }
    for part in clicks.values():
        for clicked, node in ((part, "1"), (found["gradient"], "0")):
            clicked.click()
            expect(page).to_have_url(re.compile(f"node={node}"))
            visitor.settle()
            expect(found["program"].locator("li.selected")).not_to_have_count(0)
            expect(page.locator(".graph svg .selected").first).to_be_visible()
            expect(found["order"].locator(".mark.selected").first).to_be_visible()
            expect(found["copies"].locator("tr.selected")).to_have_count(2 * int(node))


def test_a_recording_opens_in_the_colours_of_its_gradients(visitor: Visitor) -> None:
    page = visitor.open("explore")
    expect(page.locator(".graph select").first).to_have_value("gradient")


@pytest.mark.parametrize("count", [2, 4])
def test_the_replicas_of_data_parallel_stand_from_left_to_right(
    visitor: Visitor, count: int
) -> None:
    chosen = {"source": "A model", "model": "DataParallel", "backward": "1"}
    page = visitor.open(device=f"{count} simulated accelerators", **chosen)
    shown = page.locator(".graph svg .card, .graph svg .frame")
    expect(shown.filter(has_text=re.compile("^Sequential"))).to_have_count(count)
    # The first is the model itself, which has no name apart from its class.
    titles = ["Sequential", *(f"Sequential_{n} · Sequential" for n in range(2, count + 1))]
    replicas = [
        box(shown.filter(has=page.get_by_text(title, exact=True)))  # one part, else this fails
        for title in titles
    ]
    for (_, top, right, bottom), (left, other_top, _, other_bottom) in pairwise(replicas):
        assert right < left
        # They are in one row. A gradient with fewer digits may make one replica a line lower.
        assert min(bottom, other_bottom) - max(top, other_top) > (bottom - top) / 2


def test_every_page_fits_every_window_is_read_aloud_whole_and_warns_of_nothing(
    browser: Browser, address: str, window: Page, log: Path
) -> None:
    # A theme changes no size but that of a scroll bar: in the dark, one width is enough.
    windows = [*((width, "light") for width in (390, 1920, 1280)), (1280, "dark")]
    visitor = Visitor(browser, address, windows[0][0], page=window)
    wrong = []
    for path in [*PAGES, *MOVED, *STATES, *TABLES]:
        page = visitor.open(path)
        if path in MOVED:
            name, part = MOVED[path]
            expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
            expect(page.get_by_role("radio", name=part)).to_be_checked()
            expect(page).to_have_url(re.compile(re.escape(path.partition("?")[2])))
        for width, theme in windows:
            page.emulate_media(color_scheme=theme)
            page.set_viewport_size({"width": width, "height": SIZES[width]})
            page.wait_for_function(THEME, arg=theme)
            page.wait_for_function(STILL)  # what is fading in has not its colour yet
            with suppress(PlaywrightTimeoutError):
                page.wait_for_function(FITS, arg=width, timeout=30_000)
            wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
            assert wide <= width, f"{path or 'run'} is {wide} px wide"
            if width > 390:  # where a table may be scrolled
                assert page.evaluate(CUT) == [], path
            if width == 1280 and (theme == "light" or path not in TABLES):
                rules = RULES if theme == "light" else RULES_OF_COLORS
                found = Axe().run(page, context=OURS, options=rules)
                for each in found.response["violations"]:
                    wrong.append((path, theme, each["id"], each["nodes"][0]["failureSummary"]))
        visitor.settle()
        page.emulate_media(color_scheme="light")
    visitor.close()
    assert not wrong
    warning = re.compile("warning|error|traceback|exception|missing ScriptRunContext", re.I)
    assert [line for line in log.read_text().splitlines() if warning.search(line)] == []


@pytest.mark.parametrize("foreign", [False, True])
def test_another_sites_page_cannot_talk_to_the_app(address: str, foreign: bool) -> None:
    host = address.removeprefix("http://")
    asked = {
        "Host": host,
        "Origin": "http://evil.example" if foreign else address,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    connection = HTTPConnection(host, timeout=60)
    connection.request("GET", "/_stcore/stream", headers=asked)
    assert connection.getresponse().status == (403 if foreign else 101)
    connection.close()


@pytest.mark.parametrize("query", [{"node": "9" * 5_000}, {"source": "A model", "model": "<b>"}])
def test_a_hostile_link_shows_the_page_as_it_is(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.open(**query)
    expect(visitor.page.get_by_text("Traceback")).to_have_count(0)


def test_the_graph_of_a_rank_has_480_pixels_beside_its_panel(visitor: Visitor) -> None:
    page = visitor.open("processes")
    page.set_viewport_size({"width": 1280, "height": 720})
    expect(page.locator(".graph .side")).to_be_visible()
    left, top, right, bottom = box(page.locator(".graph svg").first)
    assert min(right - left, bottom - top) >= 480


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
    expect(page.get_by_text("x.grad = [10, 20]")).to_be_visible()
    other = Visitor(browser, visitor.url)
    other.page.goto(page.url)
    other.settle()
    expect(other.page.get_by_text("x.grad = [10, 20]")).to_be_visible()
    other.close()


def test_the_downloads_are_what_their_names_say(visitor: Visitor) -> None:
    page = visitor.open(backward="1", device="CPU")
    page.get_by_text("Download this recording").click()
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
    page.get_by_text("Download this recording").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON", exact=True).click()
    path = tmp_path / "graph.json"
    download.value.save_as(path)
    page = visitor.open("explore", open="My own file")
    page.locator("input[type=file]").set_input_files(path)
    expect(page.get_by_text("graph.json").first).to_be_visible()
    page.wait_for_timeout(300)
    visitor.settle()
    expect(page.locator(".graph svg [data-item]").first).to_be_visible()
    rank = tmp_path / "rank1.json"
    rank.write_bytes(path.read_bytes())
    page.locator("input[type=file]").set_input_files(rank)
    expect(page.get_by_role("combobox", name="Rank")).to_be_visible()
    visitor.settle()
    hostile = tmp_path / "hostile **b** [l](http:x).json"
    hostile.write_text('{"format": "<script>alert(1)</script>"}')
    page.locator("input[type=file]").set_input_files(hostile)
    expect(page.get_by_test_id("stAlert").first).to_contain_text("hostile **b** [l](http:x).json")


def test_the_page_is_used_by_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.open()
    button = page.get_by_role("button", name="Run backward", exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_text(EXAMPLE)).to_be_visible()


def test_a_long_training_shows_progress_and_can_be_paused_continued_and_stopped(
    visitor: Visitor,
) -> None:
    # As long as there is, so that a slow browser comes to the button before the last step.
    query = urlencode({"depth": MAX_DEPTH, "steps": MAX_STEPS, "device": "Simulated accelerator"})
    visitor.page.goto(f"{visitor.url}/training?{query}")
    main = visitor.page.get_by_test_id("stMain")
    running = visitor.page.get_by_text(re.compile(rf"step \d+ of {MAX_STEPS}")).first
    expect(running).to_be_visible(timeout=WAIT)
    main.get_by_role("button", name="Pause", exact=True).click()
    paused = visitor.page.get_by_text(re.compile(r"Paused after \d+ steps?\."))
    expect(paused).to_be_visible(timeout=WAIT)
    before = int(re.findall(r"\d+", paused.inner_text())[0])
    assert 0 < before < MAX_STEPS
    main.get_by_role("button", name="Continue", exact=True).click()
    expect(paused).to_have_count(0, timeout=WAIT)
    more = re.compile("|".join(f"step {step} of" for step in range(before + 1, MAX_STEPS + 1)))
    expect(visitor.page.get_by_text(more).first).to_be_visible(timeout=WAIT)
    main.get_by_role("button", name="Pause", exact=True).click()
    expect(paused).to_be_visible(timeout=WAIT)
    assert int(re.findall(r"\d+", paused.inner_text())[0]) > before
    main.get_by_role("button", name="Continue", exact=True).click()
    expect(paused).to_have_count(0, timeout=WAIT)
    main.get_by_role("button", name="Stop", exact=True).click()
    expect(visitor.page.get_by_text("Stopped")).to_be_visible(timeout=WAIT)
    visitor.settle()
    visitor.open("training", steps="3")
    expect(visitor.page.get_by_text("Stopped")).to_have_count(0)


def test_twenty_visitors_at_once_and_two_later_each_get_their_own_answer(address: str) -> None:
    visit_at_once(address, 20)
    visit_at_once(address, 2)
