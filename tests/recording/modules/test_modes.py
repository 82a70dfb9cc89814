"""Test the columns of modules: the mode of each, and the values of other listeners."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphviz_torch import draw_graph, find, record, summary
from graphviz_torch.graph import ModuleRow
from graphviz_torch.recording import listeners
from graphviz_torch.recording.listener import Listener
from graphviz_torch.recording.recorder import ModuleColumns


def modes(model: nn.Module, *later: nn.Module) -> dict[str, str]:
    """Return the modes after two steps; the modules go to eval mode between and after them."""
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
        for module in later:
            module.eval()
        model(torch.ones(4, 2)).sum().backward()
        model.eval()
    assert len(recording.graphs) == 2
    assert recording.graphs[0].modules is recording.graphs[1].modules
    return {row.path: row.mode for row in recording.graph.modules}


class Partly(nn.Module):
    """A model that does not call one of its layers, and calls another one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused, self.drop = nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.drop(self.body(self.body(x)))
        return y


def test_the_mode_is_that_of_the_last_backward_of_each_module_that_ran() -> None:
    assert modes(Partly()) == {"": "train", "body": "train", "drop": "train"}
    model = Partly()
    assert modes(model, model.drop, model.unused) == {"": "train", "body": "train", "drop": "eval"}


def test_a_module_without_a_mode_has_none_and_is_recorded_and_drawn() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.TransformerEncoderLayer(2, 1, 4))
    del model[0].training
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    rows = {row.path: row.mode for row in recording.graph.modules}
    assert (rows.get("0", ""), rows["1"]) == ("", "train")
    assert not any(found.severity == "error" for found in find(recording))
    assert "Linear" in draw_graph(model, torch.ones(4, 2)).source
    assert not hasattr(model[0], "training")


def test_the_summary_tells_modes_that_differ_and_leaves_out_one_that_all_have() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
    assert "mode" not in summary(recording).to_text(wide=True)
    model[1].eval()
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
    table = summary(recording)
    assert [row["mode"] for row in table.rows()] == ["train", "eval", ""]
    assert table.to_text(wide=True).splitlines()[3].endswith("eval")


def test_values_of_two_listeners_come_together_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Listener):
        def module_columns(self) -> ModuleColumns:
            return {"mode": {"0": "eval", "beside": "eval"}}

    monkeypatch.setattr(listeners, "LISTENERS", (*listeners.LISTENERS, Late))
    model = nn.Sequential(nn.Linear(2, 2))
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
    rows = ("", "train"), ("0", "eval"), ("beside", "eval")
    assert recording.graph.modules == tuple(ModuleRow(*row) for row in rows)
