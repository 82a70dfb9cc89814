"""Test the experiments with other inputs, with float64, and on influence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch.experiments import experiment, influence
from tests.experiments.programs import attention, later, net, predicted, recorded

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def step(forward: Callable[..., Any], *args: Tensor, **modules: nn.Module) -> Any:
    given = args or (torch.randn(6, 4),)
    return recorded(net(forward, fc=nn.Linear(4, 3), **modules), *given)


TWO = (torch.randn(6, 4), torch.rand(6, 4))


def dead_relu(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x) + self.fc((c - 100).relu())


def clamped(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x + c.clamp(min=50))


def unused(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x)


def result_unused(self: Any, x: Tensor, c: Tensor) -> Tensor:
    self.fc(c)
    return self.fc(x)


def signs_of_what_is_positive(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x * (c + 1000).sign())


@pytest.mark.parametrize(
    ("forward", "rule", "operation"),
    [
        (dead_relu, "input-without-effect", "relu"),
        (clamped, "input-without-effect", "clamp"),
        (unused, "unused-input", ""),
        (result_unused, "unused-input", "addmm"),
        (signs_of_what_is_positive, "input-without-effect", "sign"),
    ],
)
def test_where_the_way_of_an_input_ends_is_named(
    forward: Callable[..., Any], rule: str, operation: str
) -> None:
    found = {each.changed: each for each in experiment(step(forward, *TWO), "inputs")}
    assert found["x got other values"].holds is True
    ended = found["c got other values"]
    assert ended.finding is not None
    assert (ended.finding.rule, ended.operation) == (rule, operation)


def added(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x + c)


def as_a_mask(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(torch.where(c > 0.5, x, 0.0))


def through_no_grad(self: Any, x: Tensor, c: Tensor) -> Tensor:
    with torch.no_grad():
        scale = c.mean()
    return self.fc(x) * scale


def partly_dead(self: Any, x: Tensor, c: Tensor) -> Tensor:
    return self.fc(x + (c - 0.5).relu())


def in_place(self: Any, x: Tensor, c: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[:, 2:].copy_(c[:, 2:])
    return self.fc(x + h)


@pytest.mark.parametrize(
    "forward", [added, as_a_mask, through_no_grad, partly_dead, in_place], ids=lambda f: f.__name__
)
def test_an_input_that_reaches_the_output_is_no_finding(forward: Callable[..., Any]) -> None:
    found = experiment(step(forward, *TWO), "inputs")
    assert [each.holds for each in found] == [True, True], str(found)


def test_a_branch_that_begins_with_zeros_is_no_finding() -> None:
    gate = nn.Linear(4, 3)
    nn.init.zeros_(gate.weight)
    forward: Any = lambda self, x, c: self.fc(x) + self.gate(c)  # noqa: E731
    found = experiment(step(forward, *TWO, gate=gate), "inputs")
    [ended] = [each for each in found if each.holds is not True]
    assert (ended.holds, ended.finding) == (None, None)
    assert "still zero" in ended.message


def test_targets_of_a_model_that_begins_with_zeros_are_no_finding() -> None:
    head = nn.Linear(4, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    forward: Any = lambda self, x, y: F.cross_entropy(self.head(x), y)  # noqa: E731
    recording = recorded(net(forward, head=head), torch.randn(6, 4), torch.arange(6) % 3)
    found = experiment(recording, "inputs")
    assert {(each.holds, each.finding) for each in found} == {(None, None)}, str(found)


def variance_of_squares(self: Any, x: Tensor) -> Tensor:
    x = x + 10_000
    return self.fc((x.square().mean(1) - x.mean(1).square())[:, None].expand(-1, 4))


def difference_of_large(self: Any, x: Tensor) -> Tensor:
    return self.fc((x + 1e7) - 1e7)


def softmax_by_hand(self: Any, x: Tensor) -> Tensor:
    e = (self.fc(x) + 95).exp()
    return e / e.sum(1, keepdim=True)


def log_of_one_plus(self: Any, x: Tensor) -> Tensor:
    return self.fc((1 + x.abs() * 1e-6).log() * 1e6)


def small_numbers_in_half(self: Any, x: Tensor) -> Tensor:
    return self.fc((x * 1e-7).half().float() * 1e7)


def test_a_saturated_output_is_told_and_no_alarm_is_raised() -> None:
    [found] = experiment(step(saturated), "inputs").findings
    assert (found.rule, found.severity) == ("input-without-effect", "info")
    assert "ends at sigmoid" in found.message


@pytest.mark.parametrize(
    ("forward", "line"),
    [
        (variance_of_squares, "x.square().mean"),
        (difference_of_large, "1e7"),
        (softmax_by_hand, "exp()"),
        (log_of_one_plus, "log()"),
        (small_numbers_in_half, "half()"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_digits_are_lost_is_named(forward: Callable[..., Any], line: str) -> None:
    [found] = experiment(step(forward), "float64")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "precision-loss"
    text = Path(__file__).read_text().splitlines()
    number = int(found.where.rpartition(":")[2])
    assert line in " ".join(text[number - 1 : number + 1])


def saturated(self: Any, x: Tensor) -> Tensor:
    return (self.fc(x) - 200).sigmoid()


def log_softmax(self: Any, x: Tensor) -> Tensor:
    return self.fc(x).log_softmax(1)


def variance(self: Any, x: Tensor) -> Tensor:
    return self.fc(x - (x + 10).var(1, keepdim=True))


def dropped(self: Any, x: Tensor) -> Tensor:
    return self.fc(F.dropout(x, 0.5, self.training))


def decided(self: Any, x: Tensor) -> Tensor:
    return self.fc(x * (x > 0) + x.argmax(1, keepdim=True))


def in_bfloat16(self: Any, x: Tensor) -> Tensor:
    return F.linear(x.bfloat16(), self.fc.weight.bfloat16()).float()


@pytest.mark.parametrize(
    "forward",
    [log_softmax, variance, dropped, decided, in_bfloat16, saturated],
    ids=lambda f: f.__name__,
)
def test_rounding_is_no_finding(forward: Callable[..., Any]) -> None:
    [found] = experiment(step(forward), "float64")
    assert found.holds is True, str(found)


def test_a_path_that_depends_on_the_values_is_told_and_nothing_concluded() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(x - x.mean(0)) if x[0].sum() > limit else self.fc(x).softmax(0)

    x = torch.randn(6, 4)
    x[0] += 10
    limit = 10
    [found] = experiment(recorded(net(forward, fc=nn.Linear(4, 3)), x), "sample")
    assert (found.holds, found.finding) == (None, None)
    assert "control flow depends on these values" in found.message


def test_the_influence_of_a_position_is_a_triangle() -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(attention(x / 2, later(x)))

    for position in (0, 5):
        graph = influence(predicted(forward), position=position)
        by_title = {node.title: node.influence for node in graph.nodes}
        assert by_title["embedding"] == 1 / 8
        assert by_title["addmm"] == (8 - position) / 8


def test_an_influence_that_there_is_not_is_refused() -> None:
    recording = step(log_softmax)
    for wrong in ({}, {"sample": 0, "position": 1}, {"sample": 9}, {"input": "y"}):
        with pytest.raises(ValueError, match=r"pass exactly one of|no input (has|is called)"):
            influence(recording, **wrong)


def test_of_parameters_that_became_nan_nothing_is_concluded() -> None:
    recording = step(lambda self, x: self.fc(x))
    assert {each.holds for each in experiment(recording, "sample", "inputs", "float64")} == {True}
    module = recording.first_call.call.module
    with torch.no_grad():
        module.fc.bias[1] = torch.nan
    found = experiment(recording)
    assert {each.holds for each in found} == {None}
    assert {each.message for each in found} == {
        "fc.bias now contains NaN or Inf, so nothing can be concluded"
    }
    assert [each.name for each in found][:2] == ["sample", "positions"]


def test_a_parameter_that_no_forward_uses_spoils_nothing() -> None:
    recording = step(lambda self, x: self.fc(x), spare=nn.Linear(2, 2))
    with torch.no_grad():
        recording.first_call.call.module.spare.weight[0, 0] = torch.inf
    assert {each.holds for each in experiment(recording, "sample", "inputs")} == {True}
