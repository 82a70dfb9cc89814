"""Draw a sheet with pictures by several tools: `python -m docs.side_by_side`, in a checkout.

Each cell has a tool's default picture of a model, drawn by one call without options. A tool that is
not installed has no column. The file `docs/images/side_by_side.png` is overwritten. The script
needs torchviz, torchview, torchvista, Pillow and Chromium.
"""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from graphviz_torch import draw_graph, record
from graphviz_torch.render.dot.layout import FONTS, LayoutTimeout, layout
from tests.support.chromium import CHROMIUM, FLAGS

from .sheet_models import MODELS

DOCS = Path(__file__).parent
WIDE, HIGH, HEAD, SIDE = 430, 430, 26, 12  # pixels: cell, text above it, gap
WINDOW = 900, 800  # pixels of the browser
SECONDS = 60.0  # time limit of a layout
Size = tuple[float, float]


def _loss(outputs: Any) -> Tensor:
    result: Tensor = getattr(outputs, "logits", outputs)
    return result.square().mean() if result.ndim else result


def _drawn(dot: str) -> tuple[bytes, Size]:
    """Draw a DOT text; return the PNG and its size in points."""
    svg = layout(dot, "svg", timeout=SECONDS).decode()
    width, height = re.search(r'<svg width="(\d+)pt" height="(\d+)pt"', svg).groups()  # type: ignore[union-attr]
    return layout(dot, "png", timeout=SECONDS), (float(width), float(height))


def ours(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[bytes, Size]:
    """Draw a recorded step with `draw_graph`."""
    with record(model) as recording:
        _loss(model(*inputs)).backward()
    return _drawn(draw_graph(recording).source)


def torchviz(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[bytes, Size]:
    """Draw a model with torchviz's `make_dot`."""
    from torchviz import make_dot

    dot = make_dot(_loss(model(*inputs)), params=dict(model.named_parameters()))
    return _drawn(re.sub(r'\bsize="[^"]*"', "", dot.source))  # otherwise scaled


def torchview(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[bytes, Size]:
    """Draw a model with torchview's `draw_graph`."""
    from torchview import draw_graph as draw

    return _drawn(draw(model, input_data=inputs, graph_dir="TB").visual_graph.source)


def torchvista(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[bytes, Size]:
    """Draw the page that torchvista's `trace_model` shows in a notebook, in a browser."""
    from playwright.sync_api import sync_playwright
    from torchvista import trace_model

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        file = Path(folder) / "graph.html"
        trace_model(model, inputs, export_format="html", export_path=str(file))
        page = browser.new_page(viewport={"width": WINDOW[0], "height": WINDOW[1]})
        page.goto(file.as_uri())
        page.wait_for_selector("svg g[class*=node_]", timeout=SECONDS * 1000)
        page.wait_for_timeout(1500)  # wait until the animation has ended
        return page.screenshot(), (WINDOW[0] * 0.75, WINDOW[1] * 0.75)


TOOLS = {"graphviz_torch": ours, "torchviz": torchviz, "torchview": torchview}
TOOLS |= {"torchvista": torchvista}


def main() -> None:
    """Draw the sheet: a row for each model, a column for each tool."""
    tools = {n: draw for n, draw in TOOLS.items() if draw is ours or find_spec(n) is not None}
    sheet = Image.new("RGB", _place(len(tools), len(MODELS)), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(str(FONTS / "DejaVuSans.ttf"), 13)
    for row, (title, make) in enumerate(MODELS.items()):
        for column, (tool, draw) in enumerate(tools.items()):
            left, top = _place(column, row)
            torch.manual_seed(0)
            said, size = "", None
            try:
                png, size = draw(*make())
            except LayoutTimeout:
                said = f"no layout in {SECONDS:.0f} s"
            except Exception as error:
                said = f"ends with {type(error).__name__}"
            else:
                picture = Image.open(io.BytesIO(png)).convert("RGB")
                picture.thumbnail((WIDE, HIGH), Image.Resampling.LANCZOS)
                sheet.paste(picture, (left + (WIDE - picture.width) // 2, top + HEAD))
                said = f"{size[0]:,.0f} x {size[1]:,.0f} points"
            pen.text((left, top + 6), f"{title} · {tool} · {said}", "#1c2630", font)
            pen.rectangle((left - 4, top, left + WIDE + 4, top + HEAD + HIGH + 4), None, "#ccd5dd")
            print(f"{title:20} {tool:15} {said}", flush=True)
    (DOCS / "images").mkdir(exist_ok=True)
    sheet.quantize(128).save(DOCS / "images" / "side_by_side.png", optimize=True)


def _place(column: int, row: int) -> tuple[int, int]:
    """Return the upper left corner of a cell in pixels; after the last cell, the sheet's size."""
    return SIDE + column * (WIDE + 2 * SIDE), SIDE + row * (HEAD + HIGH + 2 * SIDE)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
