"""Test the SVG output: which element is drawn above which."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import torch
from torch import nn

from graphviz_torch import draw_graph, record

SVG = "{http://www.w3.org/2000/svg}"


def test_titles_of_frames_stand_above_all_edges_with_a_rim_in_the_frames_colour() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Tanh()))
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    drawn = draw_graph(recording, detail="full").pipe("svg").decode()
    (drawing,) = ET.fromstring(drawn).findall(f"{SVG}g")
    parts = [part.get("class") for part in drawing]
    assert parts.index("titles") > max(i for i, part in enumerate(parts) if part == "edge")
    frames = [part for part in drawing if part.get("class") == "cluster"]
    titles = drawing.findall(f"{SVG}g[@class='titles']/{SVG}text")
    assert len(titles) == len(frames) > 0
    for frame, title in zip(frames, titles, strict=True):
        shape = frame.find(f"{SVG}path")
        assert shape is not None
        assert title.get("stroke") == shape.get("fill")
        assert title.get("paint-order") == "stroke"
        assert not frame.findall(f".//{SVG}text")


class Block(nn.Module):
    """Two layers that a picture folds with those of its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


def test_no_line_of_a_title_touches_the_small_print_below_it() -> None:
    model = nn.Sequential(*(Block() for _ in range(4)))
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    drawn = draw_graph(recording, depth=2).pipe("svg").decode()
    (drawing,) = ET.fromstring(drawn).findall(f"{SVG}g")
    lines = [
        (float(text.get("y", 0)), float(text.get("font-size", 0)), 2 if rim else 0)
        for rim, where in ((True, "g[@class='titles']/"), (False, "g[@class='node']//"))
        for text in drawing.findall(f"{SVG}{where}{SVG}text")
        if (text.text or "").strip("\N{HAIR SPACE}")
    ]
    pairs = [
        (above, below)
        for above, below in pairwise(lines)
        if 0 < below[0] - above[0] < 20 and (below[1] < above[1] or above[2])
    ]
    assert len(pairs) >= 3
    for (top, large, _), (bottom, small, rim) in pairs:
        # DejaVu's letters reach 0.76 of their size up and 0.24 down; a rim is two points wide.
        assert top + 0.24 * large < bottom - 0.76 * small - rim
