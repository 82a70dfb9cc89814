"""Test the assertions for tests of models, and the pytest plugin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from graphviz_torch import Recording, load, record, simulate_accelerator
from graphviz_torch.graph import Collective
from graphviz_torch.testing import (
    assert_gradients_flow,
    assert_no_collectives,
    assert_no_findings,
    assert_no_sample_leak,
    assert_no_transfers,
    assert_same_graph,
)

pytest_plugins = ["pytester"]


class Net(nn.Module):
    """A model of two layers, with or without a cut between them."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.cut = nn.Linear(3, 4), nn.Linear(4, 1), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(x.detach() if self.cut else x).sum()


def step(model: nn.Module) -> Recording:
    with record(model) as recording:
        model(torch.ones(2, 3)).backward()
    return recording


def test_gradients_that_flow_pass_by_recording_by_module_and_by_name() -> None:
    model = Net()
    recording = step(model)
    for each in (recording, recording.graph, model):
        assert_gradients_flow(each)
        assert_gradients_flow(each, to="first")
        assert_gradients_flow(each, to=["first.weight", "last"])


def test_a_missing_gradient_names_parameter_cause_and_line() -> None:
    model = Net(cut=True)
    recording = step(model)
    with pytest.raises(AssertionError) as raised:
        assert_gradients_flow(recording)
    said = str(raised.value)
    assert said.startswith("no gradient reached first.weight and first.bias.\n")
    assert "cut by detach() at test_testing.py:" in said
    with pytest.raises(AssertionError, match=r"no gradient reached first\.weight and first\.bias"):
        assert_gradients_flow(model, to="first")
    assert_gradients_flow(recording, to="last")


def test_a_frozen_or_an_unknown_name_fails() -> None:
    model = Net()
    model.first.requires_grad_(False)
    recording = step(model)
    assert_gradients_flow(recording)
    with pytest.raises(AssertionError, match=r"first\.weight.*requires_grad is False"):
        assert_gradients_flow(recording, to="first.weight")
    with pytest.raises(AssertionError, match="no parameter or module is called frist"):
        assert_gradients_flow(recording, to="frist")


def test_a_transfer_is_named_with_size_phase_and_line() -> None:
    with simulate_accelerator() as [device], record() as recording:
        x = torch.ones(2, 3, requires_grad=True)
        (x.to(device) * 2).sum().backward()
    for phase in (None, "forward"):
        with pytest.raises(AssertionError, match=r"HtoD cpu -> .*f32\[2, 3\].*test_testing.py:"):
            assert_no_transfers(recording, phase)
    assert_no_transfers(step(Net()))


def test_a_collective_is_named_with_its_bytes_module_and_line() -> None:
    graph = step(Net()).graph
    assert_no_collectives(graph)
    sent = Collective("all_gather", 96, "float32", 2, module="first", where="train.py:7")
    graph = replace(graph, collectives=(sent,))
    with pytest.raises(
        AssertionError, match=r"1 collective in the step\n.*96 B.*first.*train\.py:7"
    ):
        assert_no_collectives(graph)
    assert_no_collectives(graph, "all_reduce")
    with pytest.raises(ValueError, match="'gather_all' is unknown: pass all_reduce"):
        assert_no_collectives(graph, "gather_all")


def test_findings_fail_from_the_severity_on() -> None:
    assert_no_findings(step(Net()))
    cut = step(Net(cut=True))
    assert_no_findings(cut, severity="error")
    with pytest.raises(AssertionError, match=r"\[cut-gradient\]"):
        assert_no_findings(cut)


def test_a_stored_graph_is_compared_and_written_anew_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "net.json"
    with pytest.raises(AssertionError, match=r"(?s)does not exist.*--graphviz-torch-update"):
        assert_same_graph(step(Net()), stored)
    monkeypatch.setenv("GRAPHVIZ_TORCH_UPDATE", "1")
    assert_same_graph(step(Net()), stored)
    monkeypatch.delenv("GRAPHVIZ_TORCH_UPDATE")
    assert all(node.seconds is None for node in load(stored).nodes)
    assert_same_graph(step(Net()), stored)  # other values, other times
    with pytest.raises(AssertionError, match=r"\d removed"):
        assert_same_graph(step(Net(cut=True)), stored)
    assert_same_graph(step(Net()), step(Net()))


def test_the_plugin_saves_the_graph_of_a_failing_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch

        def test_cut():
            model = torch.nn.Linear(2, 1)
            (model(torch.ones(1, 2)) * 2).sum().backward()
            assert False

        def test_fine():
            torch.ones(1, requires_grad=True).sum().backward()
    """)
    plugin = ("-p", "no:cacheprovider")
    done = pytester.runpytest_inprocess(*plugin, "--graphviz-torch=artifacts")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*autograd graph*", "artifacts*test_cut.json.gz"])
    [saved] = pytester.path.glob("artifacts/*.json.gz")
    assert {"weight", "bias"} <= {node.label for node in load(saved).nodes}


def test_the_plugin_does_nothing_unless_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_light():
            assert "torch" not in sys.modules
    """)
    plugin = ("-p", "no:cacheprovider")
    done = pytester.runpytest_subprocess(*plugin)
    done.assert_outcomes(passed=1)


def test_a_model_that_leaks_a_sample_fails_with_the_operation_and_line() -> None:
    class Leaking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) - x.mean()

    with pytest.raises(AssertionError, match=r"first at mean[\s\S]*test_testing.py:\d+"):
        assert_no_sample_leak(Leaking(), torch.randn(8, 4))
    assert_no_sample_leak(torch.nn.BatchNorm1d(4), torch.randn(8, 4))
    with pytest.raises(ValueError, match="no input has two samples"):
        assert_no_sample_leak(torch.nn.Linear(4, 3), torch.randn(1, 4))
