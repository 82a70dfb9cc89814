"""Compare the findings of a compiled model with those of the uncompiled model.

Each model was compiled before its recording. The expected findings are those of the same model
without torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import find, record
from graphviz_torch.graph import Finding, Graph
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401

X, Y = torch.linspace(-1, 1, 32).view(4, 8), torch.ones(4, 1)


class Model(nn.Module):
    def __init__(self, calls: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.classes = nn.Linear(8, 4)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x)


def not_called(m: Model, x: Tensor) -> Tensor:
    return F.mse_loss(m.head(m.encoder(x)), Y)


def called_in_vain(m: Model, x: Tensor) -> Tensor:
    m.gate(x)
    return F.mse_loss(m.head(m.encoder(x)), Y)


def called_for_a_number(m: Model, x: Tensor) -> Tensor:
    m.gate(x).argmax()
    return F.mse_loss(m.head(m.encoder(x)), Y)


def two_softmaxes(m: Model, x: Tensor) -> Tensor:
    return F.cross_entropy(m.classes(x).softmax(-1), torch.arange(4))


def softmax_over_the_batch(m: Model, x: Tensor) -> Tensor:
    return F.mse_loss(m.head(m.encoder(x).softmax(0)), Y)


def column_beside_row(m: Model, x: Tensor) -> Tensor:
    return F.mse_loss(m.head(m.encoder(x)), Y[:, 0])


def column_less_row(m: Model, x: Tensor) -> Tensor:
    return ((m.head(m.encoder(x)) - Y[:, 0]) ** 2).mean()


def column_on_purpose(m: Model, x: Tensor) -> Tensor:
    h = m.encoder(x).sum(-1)
    return (h[:, None] - h).square().mean() + m.gate(x).sum()


def probabilities_for_kl_div(m: Model, x: Tensor) -> Tensor:
    classes = m.classes(x).softmax(-1)
    return F.kl_div(classes, m.gate(x)[:, :4].softmax(-1), reduction="batchmean")


def root_of_zero(m: Model, x: Tensor) -> Tensor:
    h = m.encoder(x)
    return F.mse_loss(m.head((h - h).sqrt()), Y)


def root_after_a_break(m: Model, x: Tensor) -> Tensor:
    h = m.encoder(x)
    torch._dynamo.graph_break()
    return m.head((h - h).sqrt()).mean()


def log_of_zero(m: Model, x: Tensor) -> Tensor:
    h = m.encoder(x)
    return m.head((h - h).log()).mean()


def break_before_a_layer(m: Model, x: Tensor) -> Tensor:
    x = m.encoder(x)
    torch._dynamo.graph_break()
    return F.mse_loss(m.head(x), Y)


def recorded(
    calls: Callable[[Model, Tensor], Tensor], backend: str | None, compiled: Any = "open"
) -> Graph:
    torch.manual_seed(0)
    model = Model(calls)
    run = model if backend is None else torch.compile(model, backend=backend)
    for _ in range(2):
        run(X).backward()
    model.zero_grad()
    with record(model, compiled=compiled) as recording:
        run(X).backward()
    return recording.graph


def told(found: list[Finding]) -> list[tuple[str, ...]]:
    return sorted((one.rule, one.message, one.advice, one.cause, one.where) for one in found)


KNOWN = (
    not_called,
    called_in_vain,
    called_for_a_number,
    two_softmaxes,
    softmax_over_the_batch,
    column_beside_row,
    column_less_row,
    column_on_purpose,
    probabilities_for_kl_div,
)


@pytest.mark.parametrize("calls", KNOWN)
def test_what_is_known_inside_is_told_as_in_eager(calls: Callable[[Model, Tensor], Tensor]) -> None:
    assert told(find(recorded(calls, "aot_eager"))) == told(find(recorded(calls, None))) != []


OF_VALUES = (root_of_zero, root_after_a_break, log_of_zero, break_before_a_layer)


@pytest.mark.parametrize("calls", KNOWN + OF_VALUES)
def test_of_the_step_as_it_is_written_all_is_told(calls: Callable[[Model, Tensor], Tensor]) -> None:
    as_written = recorded(calls, "aot_eager", "eager")
    assert told(find(as_written)) == told(find(recorded(calls, None))) != []


@pytest.mark.parametrize("calls", [root_of_zero, root_after_a_break])
def test_a_nan_of_a_gradient_inside_is_told_of_the_region_alone(
    calls: Callable[[Model, Tensor], Tensor],
) -> None:
    graph = recorded(calls, "aot_eager")
    [found] = [one for one in find(graph) if one.rule == "nonfinite-gradient"]
    region = graph.nodes[found.nodes[0]]
    assert (region.operation, region.note) == ("compiled", "torch.compile region")
    assert found.message.startswith("compiled at ")
    assert "received a finite gradient (norm " in found.message
    assert found.advice.startswith('Record the step with record(compiled="eager")')
    [eager] = [one for one in find(recorded(calls, None)) if one.rule == "nonfinite-gradient"]
    roots = {node.operation: node.id for node in graph.nodes}
    assert eager.message.startswith("sqrt at ")
    inside = [node.id for node in graph.nodes if node.note == "inside torch.compile"]
    assert roots["sqrt"] in inside
    last = max(node for node in inside if node < region.id)
    assert last == region.id - 1
    assert roots["sqrt"] <= last  # the region that is named has the root


def test_a_nan_of_a_value_inside_asks_for_the_eager_step() -> None:
    [found] = [one for one in find(recorded(log_of_zero, "aot_eager")) if "nonfinite" in one.rule]
    assert found.message.startswith("compiled at ")
    assert found.advice.startswith('Record the step with record(compiled="eager")')


def test_beyond_a_break_no_layer_is_said_to_have_run_or_not() -> None:
    found = find(recorded(break_before_a_layer, "aot_eager"))
    assert "never-called" not in {one.rule for one in found}
    [lost] = [one for one in found if "gate.weight" in one.message]
    assert "the compiled model does not use it" in lost.message


def test_that_nothing_is_found_does_not_hide_what_is_not_seen_inside() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    run = torch.compile(model, backend="aot_eager")
    said = "gradients inside compiled regions not recorded, compiled='eager' shows them"
    for compiled, hidden in (("open", True), ("eager", False)):
        with record(model, compiled=compiled) as recording:  # type: ignore[arg-type]
            run(X).sum().backward()
        assert (said in str(find(recording))) == hidden


class WithList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.others = [nn.Linear(8, 8) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.others:
            x = layer(x).tanh()
        return x


def test_layers_in_a_plain_list_are_told_of_a_compiled_model_too() -> None:
    said = []
    for compiled in (False, True):
        model = WithList()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        for recorder in (nullcontext(), record(model)):  # compiled before it is recorded
            with recorder as recording:
                run(X).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert recording is not None
        [found] = [one for one in find(recording) if one.rule == "not-registered"]
        said.append((found.severity, found.cause, "4 parameters in others" in found.message))
    assert said == [("warning", said[0][1], True)] * 2
