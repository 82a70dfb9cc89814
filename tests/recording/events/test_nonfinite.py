"""Test that the first NaN or Inf of a forward is found on each device, without waiting for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile

from graphviz_torch import find, record, simulate_accelerator
from graphviz_torch.findings.rules.values import NonfiniteValue
from graphviz_torch.internals import probes
from graphviz_torch.recording.events import nonfinite, nonfinite_origin
from graphviz_torch.recording.events.nonfinite import take_snapshot
from graphviz_torch.recording.events.nonfinite_origin import read
from graphviz_torch.tracing.tracer import collect_nodes

Loss = Callable[[Tensor], Tensor]

SPOILT: list[Loss] = [
    lambda h: (h - 5).log().mean(),
    lambda h: (h / (h - h)).sum(),
    lambda h: (-h).sqrt().sum(),
    lambda h: (h * 1e4).exp().sum(),
    lambda h: (-h).pow(0.5).sum(),
    lambda h: (h + 2).acos().sum(),
    lambda h: (h - float("inf")).softmax(0).sum(),
    lambda h: h[:0].mean(),
    lambda h: h[:1].std(),
    lambda h: (h * float("nan")).sum(),
    lambda h: (h * h.new_tensor([1.0, 1.0, float("nan"), 1.0])).sum(),
]
FINE: list[Loss] = [
    lambda h: h.log().mean(),
    lambda h: h.masked_fill(h > 8, float("-inf")).softmax(0).square().sum(),
]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU like a device whose values have to be waited for."""
    for module in (nonfinite_origin, nonfinite, probes):
        monkeypatch.setattr(module, "is_on_cpu", lambda tensor: False)


def verdict(loss: Loss, device: Any = "cpu") -> list[tuple[str, str, str]]:
    weight = torch.linspace(1, 9, 4, requires_grad=True)
    with record(transfers=False) as recording:
        loss(weight.to(device) * 1).backward()
    rules = ("nonfinite-value", "nonfinite-gradient")
    return [(f.rule, f.severity, f.message) for f in find(recording) if f.rule in rules]


def plain(verdicts: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return the text without the numbers of NaN and Inf."""
    pattern = r"(?<=made )\d+ (?=NaN|Inf)|(?<=and )\d+ (?=Inf)|(?<=contains )\d+ (?=NaN)"
    return [(rule, severity, re.sub(pattern, "", text)) for rule, severity, text in verdicts]


@pytest.mark.parametrize("loss", [*SPOILT, *FINE])
def test_the_simulated_accelerator_has_the_findings_of_the_cpu(loss: Loss) -> None:
    expected = verdict(loss)
    assert bool(expected) == (loss in SPOILT)
    with simulate_accelerator() as [device]:
        assert verdict(loss, device) == expected


@pytest.mark.parametrize("loss", [*SPOILT, *FINE])
def test_flags_that_are_read_at_the_end_give_the_findings_of_the_cpu(
    loss: Loss, request: pytest.FixtureRequest
) -> None:
    expected = verdict(loss)
    request.getfixturevalue("waiting")
    assert plain(verdict(loss)) == plain(expected)


@pytest.mark.parametrize("loss", [SPOILT[0], FINE[0]])
def test_nothing_is_read_before_the_end_and_then_all_at_once(loss: Loss, waiting: None) -> None:
    output = loss(torch.linspace(1, 9, 4, requires_grad=True) * 1)
    fns, _ = collect_nodes([output.grad_fn])
    with profile() as looking:
        found = take_snapshot(fns, [output], [])
    with profile() as reading:
        assert found is not None
        read([found])
    waits = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
    assert not waits & {event.name for event in looking.function_events}
    assert [event.name for event in reading.function_events if event.name == "aten::cat"] == [
        "aten::cat"
    ]
    assert (found.origin() is None) == (loss in FINE)


def test_what_follows_a_loss_that_is_not_finite_is_not_told_again(waiting: None) -> None:
    weight = torch.linspace(1, 9, 4, requires_grad=True)
    with record() as recording:
        for _ in range(3):
            (weight * 1 - 5).log().mean().backward()
    events = [e for e in recording.graph.events if isinstance(e, NonfiniteValue)]
    assert [(event.operation, event.times) for event in events] == [("log", 1)]
