"""Test TensorBoard in a real browser, for faults that written files alone do not show."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

from graphviz_torch import to_tensorboard
from graphviz_torch.export import to_pbtxt
from graphviz_torch.graph import Edge, Graph, Node, SavedTensor, TensorMeta
from graphviz_torch.recording.recording import record
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.models import gpt2, tokens
from tests.tensorboard.test_writer import HOSTILE, META

pytest.importorskip("tensorboard")
sync_api = pytest.importorskip("playwright.sync_api")
if not os.path.exists(CHROMIUM):
    pytest.skip("needs Debian's chromium", allow_module_level=True)

# What is drawn: nodes with their fill, edges with their text and kind.
DRAWN = """() => {
  const nodes = {}, edges = {};
  const walk = (root) => {
    for (const g of root.querySelectorAll("g.node[data-name]")) {
      const shape = g.querySelector(":scope > .nodeshape > .nodecolortarget");
      nodes[g.dataset.name] = {
        kind: g.getAttribute("class"), fill: shape ? getComputedStyle(shape).fill : "",
      };
    }
    for (const g of root.querySelectorAll("g.edge[data-edge]")) {
      edges[g.dataset.edge] = {
        text: g.querySelector("textPath")?.textContent ?? "",
        kind: [...g.querySelectorAll("path")].map((p) => p.getAttribute("class")).join(" "),
      };
    }
    for (const e of root.querySelectorAll("*")) if (e.shadowRoot) walk(e.shadowRoot);
  };
  walk(document);
  return { nodes, edges };
}"""
WHITEST, REDDEST = "rgb(255, 245, 240)", "rgb(251, 106, 74)"


def worked() -> Graph:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with record() as recording:
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        y.backward()
    graph = recording.graph
    return graph.annotate(
        saved={2: (SavedTensor("self", graph.nodes[1].outputs[0], 12),)},  # type: ignore[arg-type]
        seconds={0: None, 1: 1e-5, 2: 4e-5, 3: None, 4: 2e-5},
    )


def devices() -> Graph:
    metas = [TensorMeta((2,), "float32", d) for d in ("cpu", "cuda:1", "sim:0", "meta")]
    nodes = tuple(
        Node(i, "ToCopyBackward0", (m,), operation="to_copy") for i, m in enumerate(metas)
    )
    return Graph(nodes, tuple(Edge(i, i + 1) for i in range(3)), ((3, 0),))


def hostile() -> Graph:
    """A sum of leaves, one by one: a node with many edges is moved out of the graph by the tab."""
    nodes, edges = [], []
    for i, label in enumerate(HOSTILE):
        nodes += [
            Node(2 * i, "AccumulateGrad", (META,), label, "", "tensor"),
            Node(2 * i + 1, "AddBackward0", (META,), operation="add"),
        ]
        edges += [Edge(2 * i, 2 * i + 1, 0, 1)]
        edges += [Edge(2 * i - 1, 2 * i + 1)] if i else []
    return Graph(tuple(nodes), tuple(edges), ((len(nodes) - 1, 0),))


def hundred_thousand() -> Graph:
    meta = TensorMeta((8, 16), "float32", "cpu")
    nodes = tuple(
        Node(
            i, "MulBackward0", (meta,), operation="mul", scope=f"layers.{i // 1000}.{i // 50 % 20}"
        )
        for i in range(100_000)
    )
    edges = tuple(Edge(i - 1, i) for i in range(1, len(nodes)))
    return Graph(nodes, edges, ((len(nodes) - 1, 0),))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("runs")
    to_tensorboard(worked(), top / "1", tag="forward")
    to_tensorboard(worked(), top / "1", tag="with backward", backward=True)
    untimed = worked().annotate(seconds=dict.fromkeys(range(5)))
    to_tensorboard(untimed, top / "1", tag="no times", backward=True)
    to_tensorboard(devices(), top / "2")
    to_tensorboard(hostile(), top / "3")
    model = gpt2(12)
    for step in (0, 100):
        with record(model) as recording:
            loss = model(tokens()).logits.square().mean()
            loss.backward()
        to_tensorboard(recording.graph, top / "4", step=step)
    to_tensorboard(hundred_thousand(), top / "5")
    to_pbtxt(worked(), top / "graph.pbtxt")
    return top


@contextmanager
def tensorboard(logdir: Path, fast: bool) -> Iterator[str]:
    """Start TensorBoard as a user does, with one of its two data servers; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}"]
    command += [f"--port={port}", "--host=127.0.0.1", f"--load_fast={str(fast).lower()}"]
    url = f"http://127.0.0.1:{port}"
    log = logdir / f"tensorboard_{fast}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 120
            while not _has_all(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def server(logdir: Path) -> Iterator[str]:
    """TensorBoard with its faster data server, written in Rust."""
    with tensorboard(logdir, fast=True) as url:
        yield url


def _has_all(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/data/plugin/graphs/info", timeout=5) as answer:
            text = answer.read()
        return all(f'"{run}"'.encode() in text for run in range(1, 6))
    except OSError:
        return False


@pytest.fixture(scope="module")
def window() -> Iterator[tuple[sync_api.Page, list[str]]]:
    """A page, which keeps the parsed code of TensorBoard from test to test, and its errors."""
    errors: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page, errors
        browser.close()


@pytest.fixture
def page(window: tuple[sync_api.Page, list[str]]) -> Iterator[sync_api.Page]:
    page, errors = window
    errors.clear()
    page.goto("about:blank")  # else a test that goes to the same address keeps what was chosen
    yield page
    assert errors == []


def choose(page: sync_api.Page, which: int, text: str) -> None:
    """Choose an entry of the list of runs (0) or tags (1)."""
    menu = page.locator("tf-graph-controls paper-dropdown-menu").nth(which)
    menu.click()
    menu.locator("paper-item").get_by_text(text, exact=True).click()


def radio(page: sync_api.Page, text: str) -> None:
    pattern = re.compile(rf"^\s*{text}\s*$", re.I)
    page.locator("tf-graph-controls paper-radio-button", has_text=pattern).click()


def wait_for(page: sync_api.Page, name: str) -> None:
    page.locator(f'g.node[data-name="{name}"]').first.wait_for(state="attached")


def expand(page: sync_api.Page, scope: str, child: str) -> None:
    """Open a scope, as a double click does."""
    page.locator(f'g.node[data-name="{scope}"] > .nodeshape').first.dispatch_event("dblclick")
    wait_for(page, child)


def fills(page: sync_api.Page) -> dict[str, str]:
    return {name: node["fill"] for name, node in page.evaluate(DRAWN)["nodes"].items()}


def answers(url: str) -> dict[str, Any]:
    """Every graph that TensorBoard serves to its own tab and to ours, by its address."""

    def read(path: str, **query: str) -> bytes:
        with urllib.request.urlopen(f"{url}/data/plugin/{path}?{urlencode(query)}") as answer:
            return bytes(answer.read())

    found = {path: json.loads(read(path)) for path in ("graphs/info", "graphviz_torch/graphs")}
    for run, its in found["graphs/info"].items():
        for tag in its["tags"]:
            found[f"{run}/{tag}"] = read("graphs/graph", run=run, tag=tag)
    for run, its in found["graphviz_torch/graphs"].items():
        for tag, steps in its.items():
            for step in steps:
                query = {"run": run, "tag": tag, "step": step}
                found[f"{run}/{tag}/{step}"] = read("graphviz_torch/graph", **query)
    return found


def test_both_data_servers_serve_the_same(server: str, logdir: Path) -> None:
    fast = answers(server)
    assert len(fast) > 12
    with tensorboard(logdir, fast=False) as slow:
        assert answers(slow) == fast


def test_the_worked_example(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    drawn = page.evaluate(DRAWN)
    assert list(drawn["nodes"]) == ["x", "add[a]", "pow[b]", "add[c]", "mean[y]", "y"]
    assert {edge: drawn["edges"][edge]["text"] for edge in drawn["edges"]} == {
        "x--add[a]": "3",
        "add[a]--pow[b]": "3",
        "pow[b]--add[c]": "3",
        "add[c]--mean[y]": "3",
        "mean[y]--y": "scalar",
    }
    radio(page, "Profile")
    radio(page, "Compute time")
    page.wait_for_function(f"({DRAWN})().nodes['pow[b]'].fill == '{REDDEST}'")
    colors = fills(page)
    assert colors["x"] == colors["add[c]"] == WHITEST, "not measured: white"
    assert len({colors["add[a]"], colors["mean[y]"], WHITEST, REDDEST}) == 4
    radio(page, "Memory")
    page.wait_for_function(f"({DRAWN})().nodes['mean[y]'].fill == '{WHITEST}'")
    assert {name for name, fill in fills(page).items() if fill == REDDEST} == {"pow[b]"}
    # Nothing is hatched away, which would take the label with it.
    assert not any("faded" in node["kind"] for node in page.evaluate(DRAWN)["nodes"].values())


def test_memory_without_times_leaves_no_node_black(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 1, "no times")
    wait_for(page, "backward")
    radio(page, "Profile")
    radio(page, "Compute time")
    page.wait_for_function(f"({DRAWN})().nodes['x'].fill.startsWith('rgb(25')")
    assert set(fills(page).values()) == {fills(page)["x"]}, "one colour: no time anywhere"
    radio(page, "Memory")
    page.wait_for_function(f"({DRAWN})().nodes['backward'].fill == '{REDDEST}'")
    assert not any("faded" in node["kind"] for node in page.evaluate(DRAWN)["nodes"].values())


def test_the_backward_scope_opens_and_points_back_at_the_leaf(
    server: str, page: sync_api.Page
) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 1, "with backward")
    wait_for(page, "backward")
    expand(page, "backward", "backward/pow[b]")
    drawn = page.evaluate(DRAWN)
    assert drawn["edges"]["backward/pow[b]--backward/add[a]"]["text"] == "3"
    assert "control-dep" in drawn["edges"]["y--backward"]["kind"]
    assert "referenceedge" in str(page.evaluate(DRAWN)["edges"])


def test_devices_have_colours_and_a_readable_legend(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 0, "2")
    wait_for(page, "to_copy(3)")
    radio(page, "Device")
    legend = page.locator("tf-graph-controls .legend-holder")
    for device in ("CPU:0", "cuda:1", "sim:0", "meta:0"):
        legend.get_by_text(device, exact=True).first.wait_for()
    page.wait_for_function(f"({DRAWN})().nodes['to_copy'].fill.includes('device')")
    assert all("device" in fill for fill in fills(page).values())


def test_hostile_names_keep_every_node_and_edge_under_every_colouring(
    server: str, page: sync_api.Page
) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 0, "3")
    wait_for(page, "x_1")
    drawn = page.evaluate(DRAWN)
    assert len(drawn["nodes"]) == 2 * len(HOSTILE) + 1
    assert len(drawn["edges"]) == 2 * len(HOSTILE)
    assert all(edge["text"] == "2×3" for edge in drawn["edges"].values())  # noqa: RUF001
    for mode, word in (("Device", "device"), ("XLA Cluster", "xla")):
        radio(page, mode)
        page.wait_for_function(f"({DRAWN})().nodes['x_1'].fill.includes('{word}')")
        assert all(word in fill for fill in fills(page).values())


def test_gpt2_is_nested_by_its_modules(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 0, "4")
    wait_for(page, "transformer")
    expand(page, "transformer", "transformer/h.11")
    expand(page, "transformer/h.11", "transformer/h.11/attn")
    names = page.evaluate(DRAWN)["nodes"]
    assert {f"transformer/h.{i}" for i in range(12)} <= names.keys()
    edge = "transformer/h.11/ln_1--transformer/h.11/attn"
    assert page.evaluate(DRAWN)["edges"][edge]["text"] == "1×8×16"  # noqa: RUF001


def test_a_hundred_thousand_nodes_open_and_expand(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 0, "5")
    wait_for(page, "layers")
    expand(page, "layers", "layers/99")
    expand(page, "layers/99", "layers/99/19")
    expand(page, "layers/99/19", "layers/99/19/mul(49)")


def test_the_autograd_tab_shows_the_view_at_each_step(server: str, page: sync_api.Page) -> None:
    page.goto(f"{server}/#graphviz_torch")
    frame = page.frame_locator("iframe[src*='graphviz_torch'], iframe").first
    frame.locator("#run").select_option("4")
    frame.get_by_text("graph, step 100").first.wait_for()
    frame.get_by_text("604 nodes").first.wait_for()
    slider = frame.locator("#step")
    assert slider.get_attribute("max") == "1"
    slider.fill("0")
    frame.get_by_text("graph, step 0").first.wait_for()
    assert frame.locator("output").first.inner_text() == "0"


def test_a_pbtxt_opens_through_the_upload_button(
    server: str, page: sync_api.Page, logdir: Path
) -> None:
    page.goto(f"{server}/#graphs")
    wait_for(page, "mean[y]")
    choose(page, 0, "2")
    wait_for(page, "to_copy(3)")
    page.locator("tf-graph-controls input[type=file]").set_input_files(logdir / "graph.pbtxt")
    wait_for(page, "pow[b]")
