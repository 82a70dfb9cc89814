"""Test that each public function accepts everything that can be converted to a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphviz_torch as gt
from tests.support.models import MLP

# Every public function that takes one graph, with what makes its answer comparable.
TAKERS: dict[str, Callable[[Any, Path], Any]] = {
    "find": lambda given, _: gt.find(given),
    "find previous": lambda given, _: gt.find(given, [given]),
    "find in ranks": lambda given, _: gt.find([given, given]),
    "diff": lambda given, _: str(gt.diff(given, given)),
    "to_dot": lambda given, _: gt.export.to_dot(given),
    "to_text": lambda given, _: gt.to_text(given),
    "to_html": lambda given, _: gt.to_html(given),
    "view": lambda given, _: gt.view(given)._repr_html_(),
    "view_payload": lambda given, _: gt.export.view_payload(given),
    "draw_graph": lambda given, _: gt.draw_graph(given).source,
    "to_pbtxt": lambda given, folder: gt.export.to_pbtxt(given, folder / "a.pbtxt").read_text(),
    "to_tensorboard": lambda given, folder: gt.to_tensorboard(given, folder),
    "add_autograd_graph": lambda given, folder: gt.tensorboard.add_autograd_graph(given, folder),
    "add_transfers": lambda given, folder: gt.tensorboard.add_transfers(given, folder, step=0),
    "collectives": lambda given, _: gt.distributed.collectives(given),
    "gather": lambda given, _: gt.distributed.gather_graphs(given),
    "graph beside a checkpoint": lambda given, folder: gt.load(
        gt.checkpoint.graph_path_for(
            gt.checkpoint.save_checkpoint(torch.ones(1), folder / "a.pt", graph=given)
        )
    ),
}


def recorded() -> Any:
    model = MLP()
    with gt.record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    return recording


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_a_recording_stands_for_its_graph(take: Any, tmp_path: Path) -> None:
    recording = recorded()
    assert take(recording, tmp_path) == take(recording.graph, tmp_path)


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_a_tensor_stands_for_its_trace(take: Any, tmp_path: Path) -> None:
    given = MLP()(torch.ones(2, 4)).sum()  # what TAKERS call it, too
    assert take(given, tmp_path) == take(gt.trace(given), tmp_path)


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_anything_else_is_refused_and_repeated(take: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected a graph, but got an? int \(3\)\. Pass"):
        take(3, tmp_path)


def test_gradients_and_batches_are_read_from_a_recording(tmp_path: Path) -> None:
    gt.tensorboard.add_gradients(recorded(), tmp_path, step=0)
    with pytest.raises(ValueError, match="has no GatherBackward"):
        gt.devices.batch_division(recorded())


def test_a_tensor_is_called_what_its_caller_calls_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    assert "weight" in gt.to_text(loss)
    assert "loss" in gt.to_text(loss)


def test_a_module_runs_one_forward_and_says_when_it_needs_inputs() -> None:
    with pytest.raises(
        TypeError, match=r"forward needs inputs\. Pass the inputs, as in draw_graph\(model, x\)"
    ):
        gt.find(nn.Linear(2, 1))
    assert "fc1" in gt.draw_graph(MLP(), torch.ones(1, 4)).source


def test_a_model_and_what_it_is_called_with_are_viewed_as_they_are_drawn(tmp_path: Path) -> None:
    model, x = MLP(), torch.ones(2, 4)
    drawn = gt.draw_graph(model, x).graph
    path = tmp_path / "graph.html"
    assert gt.to_html(model, path, inputs=(x,)) == gt.to_html(drawn) == path.read_text()
    assert gt.view(model, x)._repr_html_() == gt.view(drawn)._repr_html_()
    with pytest.raises(TypeError, match=r"path is a Tensor.*to_html\(model, inputs=\(x,\)\)"):
        gt.to_html(model, x)  # type: ignore[arg-type]
