"""Measure other tools for `bench_view.py`: torchviz with dot, TensorBoard, Model Explorer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, Page, TimeoutError

from graphviz_torch import to_tensorboard
from graphviz_torch.graph import Graph

PEER_SECONDS = 60
# Model Explorer computes layouts in a worker. Take the time of the second frame after each answer.
ANSWERS = """
window.answers = [];
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    const note = () => window.answers.push(performance.now());
    const frames = () => requestAnimationFrame(() => requestAnimationFrame(note));
    this.addEventListener("message", frames);
  }
};
"""


def bench_torchviz(depth: int) -> None:
    code = (
        "import sys, time, torch; sys.path.insert(0, sys.argv[1]); import torchviz\n"
        "from graphviz_torch.render.dot.layout import layout\n"
        "from tests.support.models import Transformer, tokens\n"
        f"model = Transformer({depth}, 16); y = model(tokens(8, 2)).sum()\n"
        "start = time.perf_counter()\n"
        "dot = torchviz.make_dot(y, dict(model.named_parameters())).source\n"
        f"layout(dot, 'svg', timeout={PEER_SECONDS})\n"
        "print(f'{time.perf_counter() - start:.2f} s')"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip() or done.stderr.strip().splitlines()[-1][:100]
    print(f"torchviz + dot   {depth} layers: {said}")


@contextmanager
def served(command: Sequence[str], port: int) -> Iterator[str]:
    """Context manager that runs a server and yields its address."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    try:
        while server.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(address).close()
                break
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def bench_tensorboard(browser: Browser, graph: Graph, folder: Path) -> None:
    start = time.perf_counter()
    to_tensorboard(graph, folder / "runs")
    written = time.perf_counter() - start
    port = free_port()
    arguments = ["--logdir", str(folder / "runs"), "--port", str(port), "--load_fast=false"]
    with served([sys.executable, "-m", "tensorboard.main", *arguments], port) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        start = time.perf_counter()
        page.goto(f"{address}#graphs")
        page.locator("g.node").first.wait_for(state="attached", timeout=PEER_SECONDS * 1000)
        print(
            f"TensorBoard      {len(graph.nodes):7} nodes  written {written:5.2f} s  "
            f"first {time.perf_counter() - start:5.2f} s"
        )
        page.close()


def model_explorer_json(graph: Graph) -> list[dict[str, object]]:
    incoming: list[list[dict[str, str]]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        ends = {"sourceNodeId": str(edge.source), "sourceNodeOutputId": str(edge.output_nr)}
        incoming[edge.target].append({**ends, "targetNodeInputId": str(edge.input_nr)})
    nodes = [
        {
            "id": str(node.id),
            "label": node.label or node.title,
            "namespace": node.scope.replace(".", "/"),
            "incomingEdges": incoming[node.id],
            "outputsMetadata": [
                {"id": str(at), "attrs": [{"key": "tensor_shape", "value": str(meta)}]}
                for at, meta in enumerate(node.outputs)
            ],
        }
        for node in graph.nodes
    ]
    return [{"id": "graph", "nodes": nodes}]


def bench_model_explorer(browser: Browser, python: str, graph: Graph, folder: Path) -> None:
    path = folder / "model_explorer.json"
    path.write_text(json.dumps(model_explorer_json(graph)))
    port = free_port()
    code = "from model_explorer.cmdline import main; main()"
    command = [python, "-c", code, str(path), "--no_open_in_browser", "--port", str(port)]
    with served(command, port) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(ANSWERS)
        asked = json.dumps({"models": [{"url": str(path)}]})
        start = time.perf_counter()
        page.goto(f"{address}?data={urllib.parse.quote(asked)}", wait_until="commit")
        wait = PEER_SECONDS * 1000
        page.locator("webgl-renderer canvas").first.wait_for(state="attached", timeout=wait)
        page.locator("mat-spinner").first.wait_for(state="detached", timeout=wait)
        spent = time.perf_counter() - start
        heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
        expanded = _expand_in_model_explorer(page)
        after = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
        print(
            f"Model Explorer   {len(graph.nodes):7} nodes  first {spent:5.2f} s  "
            f"heap {heap:4.0f} MB  expand {expanded}  heap {after:4.0f} MB"
        )
        page.close()


def _expand_in_model_explorer(page: Page) -> str:
    """Select the group in the middle, and double-click it."""
    box = page.locator("webgl-renderer canvas").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.wait_for_timeout(3000)  # the first picture is still moving
    page.mouse.move(x, y)
    page.wait_for_timeout(500)
    page.mouse.click(x, y)
    page.wait_for_timeout(600)  # otherwise both clicks count as one double click
    page.mouse.move(x + 3, y)
    page.mouse.move(x + 2, y)
    page.wait_for_timeout(300)
    start = page.evaluate("performance.now()")
    page.mouse.dblclick(x + 2, y)
    try:
        page.wait_for_function("(start) => answers.some((at) => at > start)", arg=start)
    except TimeoutError:
        return "not seen: no group was hit"
    page.wait_for_timeout(1000)
    return f"{(max(page.evaluate('answers')) - start) / 1000:5.2f} s"
