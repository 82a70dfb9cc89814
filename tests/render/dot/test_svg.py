"""The SVG that is given out: what stands above what."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import torch
from torch import nn

from graphviz_torch import draw_graph, record

SVG = "{http://www.w3.org/2000/svg}"


def test_titles_of_frames_stand_above_all_edges_with_a_rim_in_the_frames_colour() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Tanh()))
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    drawn = draw_graph(recording).pipe("svg").decode()
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
