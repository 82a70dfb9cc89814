"""Draw the pictures of the README: `python -m docs.images [NAME ...]`, in a checkout.

The names are `still`, `annotated`, `view`, `app` and `tensorboard`; without a name, all pictures
are drawn. All but the first two need Debian's chromium. The pictures of the app also need a font
with Chinese characters.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import unescape
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright
from torch import nn

from docs.programs import blocks
from graphviz_torch import Recording, record, to_html, to_tensorboard

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


def still_pictures() -> None:
    """Draw the pictures of the README's own programs."""
    text = (ROOT / "README.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(program)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, str(file)], cwd=folder, env=environment, check=True)
        for name in ("before.svg", "after.svg"):
            (IMAGES / name).write_text((Path(folder) / name).read_text())


# The texts of the picture that the table in `docs/pictures.md` explains, in its order.
ANNOTATED = (
    "f32[16, 4]",
    "encoder · Linear(4, 8)",
    "f32[16, 8]",
    "relu",
    "✂ detach()",
    "⚠ encoder.weight",
    "loss",
)


def annotated() -> str:
    """Return the picture of the program in `docs/pictures.md`, with the numbers of the table."""
    [program] = blocks((ROOT / "docs" / "pictures.md").read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(program + "picture.render('step', format='svg')\n")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, str(file)], cwd=folder, env=environment, check=True)
        svg = (Path(folder) / "step.svg").read_text()
    texts = re.findall(r'<text .*?x="([-\d.]+)" y="([-\d.]+)".*?>(.*?)</text>', svg)
    marks = []
    for number, start in enumerate(ANNOTATED, 1):
        x, y = next((x, y) for x, y, text in texts if unescape(text).strip().startswith(start))
        left, middle = float(x) - 12, float(y) - 3.5
        if start == "relu":  # the arrow that leads to it
            left, middle = left + 12, middle - 21
        marks.append(
            f'<circle cx="{left:.1f}" cy="{middle:.1f}" r="6.5" fill="#1c2630"/>'
            f'<text x="{left:.1f}" y="{middle + 3.5:.1f}" text-anchor="middle" fill="#ffffff" '
            f'font-family="DejaVu Sans,Verdana,sans-serif" font-size="9.5">{number}</text>'
        )
    head, end, tail = svg.rpartition("</g>")
    return head + "\n".join(marks) + end + tail


def write_annotated() -> None:
    """Write the picture of `docs/pictures.md`."""
    (IMAGES / "annotated.svg").write_text(annotated())


def step() -> Recording:
    """Record a step of a small transformer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(100, 32), nn.TransformerEncoder(layer, 3), nn.Linear(32, 100)
    )
    tokens = torch.randint(0, 100, (4, 16))
    with record(model) as recording:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    return recording


@contextmanager
def page(width: int, height: int) -> Iterator[Page]:
    """Yield a page of a browser, with two pixels for each CSS pixel."""
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        size = {"width": width, "height": height}
        yield browser.new_page(viewport=size, device_scale_factor=1.5)  # type: ignore[arg-type]
        browser.close()


def view() -> None:
    """Draw the interactive view."""
    with tempfile.TemporaryDirectory() as folder, page(1200, 720) as shown:
        file = Path(folder) / "step.html"
        to_html(step(), file)
        shown.goto(file.as_uri())
        shown.wait_for_timeout(1500)
        shown.screenshot(path=IMAGES / "view.png")


@contextmanager
def served(*command: str, port: int) -> Iterator[str]:
    """Run a server, and yield its address."""
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            with suppress(OSError):
                urllib.request.urlopen(address).close()
                break
            time.sleep(0.5)
        yield address
    finally:
        server.kill()


def app() -> None:
    """Draw the app's first page after "Run backward", and a training with vanishing gradients."""
    command = ("streamlit", "run", "app/main.py", "--server.port=6124", "--server.headless=true")
    with served(*command, port=6124) as address, page(1280, 900) as shown:
        shown.goto(f"{address}/?backward=1")
        shown.get_by_text("Copies between devices").wait_for(timeout=120_000)
        shown.wait_for_timeout(5000)
        shown.screenshot(path=IMAGES / "app.png")
        shown.goto(f"{address}/training?start=Vanishing")
        shown.get_by_text("The last step's graph").wait_for(timeout=120_000)
        shown.wait_for_timeout(5000)
        shown.screenshot(path=IMAGES / "app-training.png")


def tensorboard() -> None:
    """Draw TensorBoard's Graphs tab."""
    with tempfile.TemporaryDirectory() as folder, page(1200, 720) as shown:
        to_tensorboard(step(), folder, backward=True)
        command = ("tensorboard.main", "--logdir", folder, "--port", "6123")
        with served(*command, port=6123) as address:
            shown.goto(f"{address}/#graphs")
            shown.wait_for_timeout(6000)
            shown.screenshot(path=IMAGES / "tensorboard.png")


DRAW = {
    "still": still_pictures,
    "annotated": write_annotated,
    "view": view,
    "app": app,
    "tensorboard": tensorboard,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or DRAW:
        DRAW[name]()
