"""Measure the view's opening, expanding and memory, compared with torchviz, TensorBoard and others.

    python -m tests.bench.bench_view [--quick] [--model-explorer PYTHON]

Each graph is made from a transformer that is recorded once and repeated, with all values; measured
values differ from node to node. `first` is the time from the start of the page to the first
picture, and `busy` the processor time of the page's thread until then. `expand` is the time from a
click on a closed group to the frame after its content was drawn, and `heap` is JavaScript's memory
at that time. `inside` is a click with shift on a closed module call of 400 operations within a
large graph, until the frame after all of them were drawn: the best and the worst of five pages.

torchviz draws the same model's live graph with this project's Graphviz. TensorBoard shows the
output of `to_tensorboard`; its time ends at the first node.

Model Explorer (`pip install ai-edge-model-explorer`, 660 MB, best in an environment of its own)
gets the same nodes, modules and edges in its own JSON format. Its time ends when its drawing
surface has no spinner; `expand` is from a double click on the group in the middle to the second
frame after the layout's answer.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor, nn

from graphviz_torch import record, to_html
from graphviz_torch.graph import Edge, Graph
from graphviz_torch.render.view import view_script
from graphviz_torch.render.view.payload import view_payload
from tests.bench.view_peers import bench_model_explorer, bench_tensorboard, bench_torchviz
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.models import MLP, Transformer, tokens

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
INSIDE = """async () => {
  const view = document.querySelector("#view").firstChild.shadowRoot.querySelector(".view");
  const before = view.dataset.cards;
  const groups = [...view.querySelectorAll(".card.group")];
  const sign = groups.find((one) => one.textContent.includes("inline")).querySelector("[data-act]");
  const start = performance.now();
  sign.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: true }));
  while (view.dataset.cards === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return [performance.now() - start, view.dataset.cards - before + 1];
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


class Inline(nn.Module):
    """One module call of 400 operations; a quarter of them also read an earlier result."""

    def forward(self, x: Tensor) -> Tensor:
        rnd = random.Random(0)
        past = [x]
        count = 0
        while count < 400:
            past.append(rnd.choice((torch.tanh, torch.exp, torch.sin, torch.cos))(past[-1]))
            count += 1
            if rnd.random() < 0.25 and count < 400:
                past[-1] = past[-1] + rnd.choice(past[-6:-1])
                count += 1
        return past[-1]


def with_inline(graph: Graph) -> Graph:
    """Return the graph with a module call of 400 operations added beside it."""
    model = nn.Sequential()
    model.add_module("inline", Inline())
    with record(model) as recording:
        model(torch.ones(2, requires_grad=True)).sum().backward()
    shift = len(graph.nodes)
    moved = [node._replace(id=node.id + shift, saved=()) for node in recording.graph.nodes]
    edges = [
        e._replace(source=e.source + shift, target=e.target + shift) for e in recording.graph.edges
    ]
    outputs = tuple((node + shift, nr) for node, nr in recording.graph.outputs)
    return Graph((*graph.nodes, *moved), (*graph.edges, *edges), graph.outputs + outputs)


def repeated(base: Graph, count: int, *, modules: bool) -> Graph:
    """Return about `count` nodes: a chain of copies of a graph, each in its own module."""
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
                and stats._replace(
                    norm=stats.norm * factor[0],
                    max_abs=stats.max_abs * factor[1],
                    mean=stats.mean * factor[2],
                    values=None,
                )
                for stats in node.grad_outputs
            )
            saved = tuple(
                s._replace(shared_with=None if s.shared_with is None else s.shared_with + shift)
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
    # The first click is a warm-up. "See all" brings distant cards into the document.
    opened = []
    for _ in range(5):
        page.get_by_role("button", name="See all").click()
        groups = page.evaluate(GROUPS)
        opened += [page.evaluate(EXPAND, groups[len(groups) // 2])] if groups else []
    opened = opened[1:]
    slow, cards, after = max(opened) if opened else (0.0, 0, heap)
    print(
        f"{name:16} {len(graph.nodes):7} nodes  {len(payload) / len(graph.nodes):5.1f} B/node  "
        f"packed {packed:5.2f} s  first {first / 1000:5.2f} s  busy {busy:4.2f} s  "
        f"heap {heap:4.0f} MB  "
        f"expand ({cards} cards) {slow / 1000:5.2f} s  heap {after:4.0f} MB"
    )
    page.close()


def bench_small() -> None:
    model = MLP()
    with record(model) as recording:
        model(torch.ones(3, 4)).sum().backward()
    sizes = [(len(g.nodes), len(view_payload(g))) for g in (recording.graph, recorded(2))]
    for count, size in sizes:
        print(f"payload          {count:7} nodes  {size / count:5.1f} B/node  {size} B")


def bench_inside(browser: Browser, graph: Graph, folder: Path) -> None:
    path = folder / "inside.html"
    to_html(graph, path)
    times, shown = [], 0
    for _ in range(5):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.as_uri())
        page.wait_for_selector(".view[data-cards]")
        page.locator("input[type=search]").fill("inline")
        page.locator(".found button").first.click()
        page.wait_for_selector(".card.group.selected")
        page.keyboard.press("Escape")
        page.wait_for_timeout(500)
        spent, shown = page.evaluate(INSIDE)
        times.append(spent / 1000)
        page.close()
    print(
        f"inside           {len(graph.nodes):7} nodes  a call of 400 operations: {shown} cards in "
        f"{min(times):5.2f} to {max(times):5.2f} s"
    )


def bench_open_all(browser: Browser, graph: Graph, folder: Path) -> None:
    path = folder / "whole.html"
    to_html(graph, path)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    page.wait_for_selector(".view[data-cards]")
    spent, cards, heap = page.evaluate(OPEN_ALL)
    print(f"open all         {cards} cards in {spent / 1000:5.2f} s  heap {heap:4.0f} MB")
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="no other tools, no graphs above 10,000 nodes"
    )
    parser.add_argument(
        "--model-explorer", metavar="PYTHON", help="Python of an environment with Model Explorer"
    )
    options = parser.parse_args()
    quick, explorer = options.quick, options.model_explorer
    base = recorded(12)
    print(f"the view itself  {len(view_script().encode()) / 1000:.0f} KB")
    bench_small()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--enable-precise-memory-info"]
        )
        for count in (700, 10_000) if quick else (700, 10_000, 100_000):
            for modules in (True, False):
                graph = repeated(base, count, modules=modules)
                bench_view(browser, "modules" if modules else "no modules", graph, folder)
        large = repeated(base, 10_000 if quick else 100_000, modules=True)
        bench_inside(browser, with_inline(large), folder)
        for depth in (9, 12, 33):  # about 400, 500 and 1,500 cards
            bench_open_all(browser, recorded(depth), folder)
        if not quick:
            for depth in (2, 12, 60):
                bench_torchviz(depth)
            for count in (700, 10_000):
                bench_tensorboard(browser, repeated(base, count, modules=True), folder)
            if explorer is None and find_spec("model_explorer"):
                explorer = sys.executable
            if explorer is None:
                print(
                    "Model Explorer   is not installed here; name a Python: --model-explorer PYTHON"
                )
            else:
                for count in (700, 10_000, 100_000):
                    graph = repeated(base, count, modules=True)
                    bench_model_explorer(browser, explorer, graph, folder)
        browser.close()


if __name__ == "__main__":
    main()
