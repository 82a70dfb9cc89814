"""Test the picture of two graphs: each difference has a box, a word, a line and a color."""

from __future__ import annotations

import re

import torch
from torch import nn

from graphviz_torch import Graph, diff, draw_graph, record
from graphviz_torch.render.style import COLORS


def recorded(model: nn.Module) -> Graph:
    with record(model) as recording:
        model(torch.ones(3, 4)).sum().backward()
    return recording.graph


def line_of(dot: str, text: str) -> str:
    """Return the line of the node with this text in a DOT text."""
    (found,) = [line for line in dot.splitlines() if text in line and re.match(r"\s*\d+ \[", line)]
    return found


def layers(activation: nn.Module, *, bias: bool = True, width: int = 4) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, width), activation, nn.Linear(width, 2))
    model[2].bias.requires_grad_(bias)
    return model


def test_each_kind_of_difference_has_a_word_a_line_and_a_colour_of_its_own() -> None:
    found = diff(recorded(layers(nn.ReLU())), recorded(layers(nn.Tanh(), width=8)))
    dot = draw_graph(found).source
    for text, word, style, color in (
        ("relu", "\N{MINUS SIGN} removed", "dashed", "removed"),
        ("tanh", "+ added", "", "added"),
        ("0 · Linear", "≠ changed", "dotted", "changed"),
    ):
        line = line_of(dot, text)
        assert word in line
        assert COLORS[color][0] in line
        assert [each for each in ("dashed", "dotted") if each in line] == ([style] if style else [])


def test_a_parameter_that_was_frozen_has_a_box_of_its_own() -> None:
    found = diff(recorded(layers(nn.ReLU())), recorded(layers(nn.ReLU(), bias=False)))
    dot = draw_graph(found).source
    box = line_of(dot, "\N{MINUS SIGN} removed")
    assert "bias" in box
    assert "addmm" not in box
    both_ways = diff(found.b, found.a)
    assert "bias" in line_of(draw_graph(both_ways).source, "+ added")


def test_the_footer_says_the_direction_and_the_edges_that_no_box_shows() -> None:
    one, two = recorded(layers(nn.ReLU())), recorded(layers(nn.Sequential(nn.ReLU(), nn.Tanh())))
    said = draw_graph(diff(two, one, titles=("MLP & tanh", "MLP"))).source
    assert "From MLP &amp; tanh to MLP. Edges: + relu → addmm, input 1." in said
    assert "From the first graph to the second." in draw_graph(diff(one, two)).source
