"""Compare a recording of each step with a recording of the whole run: a missing zero_grad."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from graphviz_torch import find, record
from tests.support.observable import objects_of_ours


def each_step(kind: type[torch.optim.Optimizer], clears: str, *, micro: int = 1) -> list[list[str]]:
    """Return the rules found in each of four steps, each in a recording of its own."""
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    told = []
    for _ in range(4):
        if clears in ("before", "to zero"):
            optimizer.zero_grad(set_to_none=clears == "before")
        with record(model) as recording:
            if clears == "first":
                optimizer.zero_grad()
            for _ in range(micro):
                model(torch.randn(4, 3)).square().mean().div(micro).backward()
            optimizer.step()
            if clears == "last":
                optimizer.zero_grad()
        told.append([each.rule for graph in recording.graphs for each in find(graph)])
    return told


KINDS = [torch.optim.SGD, torch.optim.AdamW]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_zero_grad_is_told_by_one_recording_for_each_step(
    kind: type[torch.optim.Optimizer], micro: int
) -> None:
    assert each_step(kind, "never", micro=micro) == [[], *[["missing-zero-grad"]] * 3]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("clears", ["before", "to zero", "first", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_cleared_between_or_in_recordings_are_not_told(
    kind: type[torch.optim.Optimizer], clears: str, micro: int
) -> None:
    assert each_step(kind, clears, micro=micro) == [[]] * 4


def test_gradients_that_several_recordings_add_up_for_one_step_are_not_told() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(8):
        with record(model) as recording:
            model(torch.randn(5, 3)).square().mean().div(4).backward()
            if i % 4 == 3:
                optimizer.step()
        if i % 4 == 3:
            optimizer.zero_grad()
        assert find(recording.graph) == []


def test_what_was_done_between_recordings_is_no_mistake_of_theirs() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):  # a new gradient may lie where the old one was
        with record(model) as recording:
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        assert find(recording.graph) == []
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()


def test_what_a_recording_knows_of_gradients_for_the_next_one_goes_and_hinders_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    with record(model):
        model(torch.randn(4, 3)).sum()  # no gradient, nothing to know
    nothing = objects_of_ours()["_SteppedGradient"]
    for _ in range(3):
        with record(model):
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    assert objects_of_ours()["_SteppedGradient"] == nothing + 1
    assert all(
        weakref.getweakrefcount(each) == 0 for p in model.parameters() for each in (p, p.grad)
    )
    gradient = weakref.ref(model.weight.grad)
    optimizer.zero_grad()
    assert gradient() is None
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    model.to(torch.float64)
    del optimizer
    assert objects_of_ours()["_SteppedGradient"] == nothing
