"""Test module paths that are too long for a drawing: they are shortened, noted and saved."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import graphviz_torch as gt

LONG = "a" * 9_000 + "b" * 1_000


class Inner(nn.Module):
    """A module that another module calls."""

    def __init__(self, inner: nn.Module, name: str = "inner") -> None:
        super().__init__()
        self.add_module(name, inner)

    def forward(self, x: Tensor) -> Tensor:
        [inner] = self.children()
        return inner(x)


def saved(model: nn.Module, folder: Path) -> gt.Graph:
    """Record a step of the model, and return what its file holds."""
    with gt.record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    graph = gt.load(recording.graph.save(folder / "step.json.gz"))
    assert isinstance(graph, gt.Graph)
    traced = gt.trace(model(torch.ones(2, 3)).sum(), names=model)
    assert gt.load(traced.save(folder / "trace.json")) == traced
    return graph


def test_a_name_of_ten_thousand_characters_is_cut_and_told(tmp_path: Path) -> None:
    graph = saved(Inner(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), LONG), tmp_path)
    cut = "a" * 499 + "…" + "b" * 500
    assert {node.module for node in graph.nodes} == {"", f"{cut}.0", f"{cut}.1"}
    assert [p.name for p in graph.parameters] == [f"{cut}.0.weight", f"{cut}.0.bias"]
    assert f"{cut}.0.weight" in {node.label for node in graph.nodes}
    told = [node.id for node in graph.nodes if "not recorded: the whole of module" in node.note]
    assert told == [graph.outputs[0][0]]
    assert "not recorded: the whole of module paths" in str(gt.find(graph))
    assert len(gt.to_text(graph)) < 20_000
    assert gt.to_html(graph)


def test_a_module_of_150_levels_is_cut_below_the_hundredth(tmp_path: Path) -> None:
    model: nn.Module = nn.Linear(3, 3)
    for _ in range(149):
        model = Inner(model)
    graph = saved(model, tmp_path)
    deepest = ".".join(["inner"] * 99 + ["…"])
    assert max((node.module for node in graph.nodes), key=len) == deepest
    assert [p.name for p in graph.parameters] == [f"{deepest}.weight", f"{deepest}.bias"]


def test_long_names_in_many_levels_still_nest(tmp_path: Path) -> None:
    model: nn.Module = nn.Linear(3, 3)
    for i in range(90):
        model = Inner(model, f"{i}{'x' * 300}")
    graph = saved(model, tmp_path)
    paths = sorted((row.path for row in graph.modules), key=len)
    assert all(b.startswith(a) for a, b in pairwise(paths))


def test_names_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    name = "a" * 4_000
    graph = saved(Inner(nn.Linear(3, 3), name), tmp_path)
    assert [p.name for p in graph.parameters] == [f"{name}.weight", f"{name}.bias"]
    assert not any(node.note for node in graph.nodes)
