"""Draw the gallery: `python -m docs.gallery`, in a checkout.

Each picture is drawn by `draw_graph(recording)` without options. `docs/gallery.md` and the pictures
in `docs/gallery/` are overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from graphviz_torch import Recording, draw_graph, record, to_html
from tests.support.zoo import ZOO

DOCS = Path(__file__).parent
PAGE = """\
# Gallery

Each picture shows one training step, drawn by `draw_graph(recording)` without options. The models
have small layers and random weights, but the same nodes and edges as the models of full size. On
the site, a click opens the interactive view of the step; elsewhere, it opens the picture in full
size. `python -m docs.gallery` draws all pictures.

"""
COLUMNS = 3
CELL = (
    "[![{title}](gallery/{file})](gallery/{file})<br>"
    "**{title}**: {nodes:,} nodes, {width:,} by {height:,} points"
)


def worked_example() -> Recording:
    """Record y = mean((x + 2)**2 + 3)."""
    with record() as recording:
        x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        y.backward()
    return recording


STEPS = {"The worked example": worked_example, **ZOO}


def main() -> None:
    """Draw all steps, and write the page that shows the pictures in three columns."""
    folder = DOCS / "gallery"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    cells = []
    for title, make in STEPS.items():
        torch.manual_seed(0)
        recording = make()
        file = f"{_name(title)}.svg"
        picture = draw_graph(recording, timeout=120)
        picture.render(outfile=folder / file)
        sizes = re.search(r'<svg width="(\d+)pt" height="(\d+)pt"', (folder / file).read_text())
        assert sizes is not None
        width, height = map(int, sizes.groups())
        count = len(picture.graph.nodes)
        cells.append(
            {"title": title, "file": file, "nodes": count, "width": width, "height": height}
        )
        print(f"{title}: {count:,} nodes, {width:,} x {height:,} points")
    shown = [CELL.format(**cell) for cell in cells]
    shown += [""] * (-len(shown) % COLUMNS)
    rows = ["| " * COLUMNS + "|", "|---" * COLUMNS + "|"]
    for first in range(0, len(shown), COLUMNS):
        rows.append("| " + " | ".join(shown[first : first + COLUMNS]) + " |")
    (DOCS / "gallery.md").write_text(PAGE + "\n".join(rows) + "\n")


def write_views(folder: Path, titles: Sequence[str]) -> None:
    """Write the interactive view of each named step, unless the folder already has it."""
    folder.mkdir(parents=True, exist_ok=True)
    for title in titles:
        file = folder / f"{_name(title)}.html"
        if not file.exists():
            torch.manual_seed(0)
            to_html(STEPS[title](), file, title=title)


def _name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower())


if __name__ == "__main__":
    main()
