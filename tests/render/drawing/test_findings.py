"""Test that drawings and printed graphs of a recording mark what `find` reports."""

from __future__ import annotations

import base64
import gzip
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphviz_torch as gt
from graphviz_torch.render.drawing.steps import draw

SENTENCE = "fc1.weight and fc1.bias got no gradient: a result was cut by detach()"


class Detached(nn.Module):
    """A model that detaches the first layer's result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).detach())


def recorded() -> gt.Recording:
    model = Detached()
    with gt.record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    return recording


def opened(page: str) -> str:
    """Return the data of the view in a page, as text."""
    payload = re.search(r'id="graph">([^<]*)<', html.unescape(page))
    assert payload is not None
    return gzip.decompress(base64.b64decode(payload[1])).decode(errors="replace")


def plain(text: str) -> str:
    """Return a text in which SVG's and Mermaid's character codes are letters again."""
    return re.sub(r"&?#(\d+);", lambda match: chr(int(match[1])), text)


DOORS: dict[str, Callable[..., str]] = {
    "draw_graph": lambda graph, **how: gt.draw_graph(graph, **how).source,
    "to_dot": gt.export.to_dot,
    "to_mermaid": lambda graph, **how: plain(gt.export.to_mermaid(graph, **how)),
    "to_text": lambda graph, **how: " ".join(gt.to_text(graph, **how).split()),
    "to_html": lambda graph, **how: opened(gt.to_html(graph, **how)),
    "view": lambda graph, **how: opened(gt.view(graph, **how)._repr_html_()),
    "view_payload": lambda graph, **how: opened(
        f'id="graph">{gt.export.view_payload(graph, **how)}<'
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("of", ["recording", "graph"])
def test_a_finding_is_marked_unless_it_is_turned_off(door: str, of: str) -> None:
    given: Any = recorded()
    given = given if of == "recording" else given.graph
    marked = html.unescape(DOORS[door](given))
    assert SENTENCE in marked
    assert "cut-gradient" in marked
    assert "cut-gradient" not in DOORS[door](given, findings=None)
    other = gt.Finding("of-my-own", "warning", "It is mine.", nodes=(0,))
    marked = DOORS[door](given, findings=[other])
    assert "of-my-own" in marked
    assert "cut-gradient" not in marked


def test_a_notebook_shows_a_recording_with_its_findings() -> None:
    [svg] = recorded()._repr_mimebundle_().values()
    assert "cut-gradient" in plain(svg)


@pytest.mark.parametrize("door", ["draw_graph", "to_html", "view", "view_payload"])
def test_a_difference_is_not_judged(door: str) -> None:
    changed = gt.diff(recorded(), recorded(), gradient_tolerance=0.0)
    assert "cut-gradient" not in DOORS[door](changed)
    other = gt.Finding("of-my-own", "warning", "It is mine.", nodes=(0,))
    assert "of-my-own" in DOORS[door](changed, findings=[other])


def test_a_cut_marks_what_it_starves_and_not_the_layer_behind_it_that_learns() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 8), "head": nn.Linear(8, 1)})
    with gt.record(model) as recording:
        features = model["encoder"](torch.ones(2, 4)).relu().detach()
        model["head"](features).square().mean().backward()
    drawing = draw(recording.graph, {"findings": gt.find(recording)})
    nodes = recording.graph.nodes
    marked = {nodes[key].module or nodes[key].title for key in drawing.highlights.outlines}
    assert marked == {"encoder", "relu"}
    learns = {node.module for node in nodes if node.leaf and any(node.grad_outputs)}
    assert learns == {"head"}
