"""How fast the view opens and expands, and what it weighs, beside torchviz + dot and TensorBoard.

    python tests/bench_view.py [--quick]

Every graph is that of a transformer recorded once and repeated, with all values, the measured ones
made different for each node. `first` is from the start of the page to the first picture drawn, and
`busy` the processor time that the page's thread had until then; `expand` is from a click on a
closed group to the frame after its inside was drawn; `heap` is what JavaScript holds then. torchviz
draws the same model's live graph with the Graphviz that this project uses; TensorBoard shows what
`to_tensorboard` writes, and its time is from the start of the page to the first node.
"""

from __future__ import annotations

import argparse
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from models import Transformer, tokens
from playwright.sync_api import Browser, sync_playwright

from graphviz_torch import record, to_html, to_tensorboard
from graphviz_torch.graph import Edge, Graph
from graphviz_torch.render.html import view_payload, view_script

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
PEER_SECONDS = 60
EXPAND = """async (item) => {
  const view = document.querySelector("#view").firstChild.shadowRoot.querySelector(".view");
  const before = view.dataset.cards;
  const sign = view.querySelector(`.card[data-item="${item}"] [data-act]`);
  const start = performance.now();
  sign.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  while (view.dataset.cards === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const cards = view.dataset.cards - before + 1;
  return [performance.now() - start, cards, performance.memory.usedJSHeapSize / 1e6];
}"""
OPEN_ALL = """async () => {
  const view = document.querySelector("#view").firstChild.shadowRoot.querySelector(".view");
  const before = view.dataset.cards;
  const start = performance.now();
  [...view.querySelectorAll(".bar button")].find((b) => b.textContent === "Open all").click();
  while (view.dataset.cards === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const spent = performance.now() - start;
  return [spent, +view.dataset.cards, performance.memory.usedJSHeapSize / 1e6];
}"""
GROUPS = """() => {
  const view = document.querySelector("#view").firstChild.shadowRoot;
  return [...view.querySelectorAll(".card.group")].map((card) => card.dataset.item);
}"""


def recorded(depth: int) -> Graph:
    torch.manual_seed(0)
    model = Transformer(depth, 16)
    with record(model) as recording:
        model(tokens(8, 2)).sum().backward()
    return recording.graph


def repeated(base: Graph, count: int, *, modules: bool) -> Graph:
    """About `count` nodes: copies of a graph in a row, each in a module of its own."""
    rnd = random.Random(0)
    size = len(base.nodes)
    copies = max(1, round(count / size))
    start = next(n.id for n in base.nodes if not n.leaf and n.operation != "embedding")
    out = base.outputs[0][0]
    nodes, edges = [], []
    for copy in range(copies):
        shift = copy * size

        def path(text: str, copy: int = copy) -> str:
            return f"stage{copy}.{text}".rstrip(".") if modules else ""

        for node in base.nodes:
            factor = [rnd.uniform(0.5, 2) for _ in range(4)]
            gradients = tuple(
                stats
                and replace(
                    stats,
                    norm=stats.norm * factor[0],
                    max_abs=stats.max_abs * factor[1],
                    mean=stats.mean * factor[2],
                    values=None,
                )
                for stats in node.grad_outputs
            )
            saved = tuple(
                replace(s, shared_with=None if s.shared_with is None else s.shared_with + shift)
                for s in node.saved
            )
            nodes.append(
                node._replace(
                    id=node.id + shift,
                    label=f"stage{copy}.{node.label}" if node.label else "",
                    module=path(node.module),
                    scope=path(node.scope),
                    saved=saved,
                    grad_outputs=gradients,
                    order=(copies - 1 - copy) * size + (node.order or 0),
                    seconds=(node.seconds or 1e-6) * factor[3],
                )
            )
        edges += [e._replace(source=e.source + shift, target=e.target + shift) for e in base.edges]
        if copy:
            edges.append(Edge(out + shift - size, start + shift, 0, 7))
    edges.sort(key=lambda edge: (edge.target, edge.input_nr))
    return Graph(tuple(nodes), tuple(edges), ((out + (copies - 1) * size, 0),))


def bench_view(browser: Browser, name: str, graph: Graph, folder: Path) -> None:
    start = time.perf_counter()
    payload = view_payload(graph)
    packed = time.perf_counter() - start
    path = folder / "graph.html"
    to_html(graph, path)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector(".view[data-cards]", timeout=60_000)
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    busy = next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    first = page.evaluate("performance.getEntriesByName('graph drawn')[0].startTime")
    heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    page.evaluate(EXPAND, page.evaluate(GROUPS)[0]) if page.evaluate(GROUPS) else None
    opened = [page.evaluate(EXPAND, item) for item in page.evaluate(GROUPS)[:4]]
    slow, cards, after = max(opened) if opened else (0.0, 0, heap)
    print(
        f"{name:16} {len(graph.nodes):7} nodes  {len(payload) / len(graph.nodes):5.1f} B/node  "
        f"packed {packed:5.2f} s  first {first / 1000:5.2f} s  busy {busy:4.2f} s  "
        f"heap {heap:4.0f} MB  "
        f"expand ({cards} cards) {slow / 1000:5.2f} s  heap {after:4.0f} MB"
    )
    page.close()


def bench_open_all(browser: Browser, graph: Graph, folder: Path) -> None:
    path = folder / "whole.html"
    to_html(graph, path)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    page.wait_for_selector(".view[data-cards]")
    spent, cards, heap = page.evaluate(OPEN_ALL)
    print(f"open all         {cards} cards in {spent / 1000:5.2f} s  heap {heap:4.0f} MB")
    page.close()


def bench_torchviz(depth: int) -> None:
    code = (
        "import sys, time, torch; sys.path.insert(0, sys.argv[1]); import torchviz\n"
        "from graphviz_torch.render.layout import layout\n"
        "from models import Transformer, tokens\n"
        f"model = Transformer({depth}, 16); y = model(tokens(8, 2)).sum()\n"
        "start = time.perf_counter()\n"
        "dot = torchviz.make_dot(y, dict(model.named_parameters())).source\n"
        f"layout(dot, 'svg', timeout={PEER_SECONDS})\n"
        "print(f'{time.perf_counter() - start:.2f} s')"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip() or done.stderr.strip().splitlines()[-1][:100]
    print(f"torchviz + dot   {depth} layers: {said}")


def bench_tensorboard(browser: Browser, graph: Graph, folder: Path) -> None:
    start = time.perf_counter()
    to_tensorboard(graph, folder / "runs")
    written = time.perf_counter() - start
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--logdir", str(folder / "runs"), "--port", str(port), "--load_fast=false"]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}/"
        while server.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(address).close()
                break
            time.sleep(0.2)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        start = time.perf_counter()
        page.goto(f"{address}#graphs")
        page.locator("g.node").first.wait_for(state="attached", timeout=PEER_SECONDS * 1000)
        print(
            f"TensorBoard      {len(graph.nodes):7} nodes  written {written:5.2f} s  "
            f"first {time.perf_counter() - start:5.2f} s"
        )
        page.close()
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no peers, nothing above 10,000 nodes")
    quick = parser.parse_args().quick
    base = recorded(12)
    print(f"the view itself  {len(view_script().encode()) / 1000:.0f} KB")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=[*FLAGS, "--enable-precise-memory-info"]
        )
        for count in (700, 10_000) if quick else (700, 10_000, 100_000):
            for modules in (True, False):
                graph = repeated(base, count, modules=modules)
                bench_view(browser, "modules" if modules else "no modules", graph, folder)
        for depth in (9, 12, 33):  # about 400, 500 and 1,500 cards
            bench_open_all(browser, recorded(depth), folder)
        if not quick:
            for depth in (2, 12, 60):
                bench_torchviz(depth)
            for count in (700, 10_000):
                bench_tensorboard(browser, repeated(base, count, modules=True), folder)
        browser.close()


if __name__ == "__main__":
    main()
