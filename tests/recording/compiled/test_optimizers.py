"""Test recordings of compiled optimizer steps: values, compiled code and findings.

Each row is a use of an optimizer, most of them with a mistake. The expected findings are those of
steps without torch.compile, and the expected parameters are those without a recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from graphviz_torch import find, record
from graphviz_torch.graph import Finding
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401

X = torch.linspace(-1, 1, 32).view(4, 8)
Steps = Callable[[nn.Sequential, Callable[[Any], Optimizer], Callable[[Optimizer], Any]], None]


def backward(model: nn.Sequential) -> None:
    model(X).square().mean().backward()


def as_it_should_be(
    model: nn.Sequential, make: Any, compiled: Any, of: nn.Module | None = None
) -> None:
    optimizer = make((of or model).parameters())
    step = compiled(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        step()


def of_half_the_model(model: nn.Sequential, make: Any, compiled: Any) -> None:
    as_it_should_be(model, make, compiled, of=model[0])


def with_old_gradients(model: nn.Sequential, make: Any, compiled: Any) -> None:
    step = compiled(make(model.parameters()))
    for _ in range(3):
        backward(model)
        step()


def before_the_first_step(model: nn.Sequential, make: Any, compiled: Any) -> None:
    optimizer = make(model.parameters())
    scheduler, step = StepLR(optimizer, 1), compiled(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        scheduler.step()
        step()


MISTAKES = (of_half_the_model, with_old_gradients, before_the_first_step)


def by_python(optimizer: Optimizer) -> Callable[[], Any]:
    def step() -> None:
        optimizer.step()

    return step


def in_a_function(optimizer: Optimizer) -> Callable[[], Any]:
    @torch.compile(backend="aot_eager")
    def step() -> None:
        optimizer.step()

    return step


def itself(optimizer: Optimizer) -> Callable[[], Any]:
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
    return by_python(optimizer)


MAKES = (
    lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: Adam(parameters, lr=0.01),
    lambda parameters: AdamW(parameters, lr=0.01, foreach=True),
)


def run(
    steps: Steps, make: Any, compiled: Any, recorded: bool
) -> tuple[list[Tensor], int, list[Finding]]:
    """Return the parameters afterwards, the number of compiled graphs, and the findings."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model, found = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), list[Finding]()
    if recorded:
        with record(model) as recording:
            steps(model, make, compiled)
        found = find(recording)
    else:
        steps(model, make, compiled)
    return [*model.parameters()], counters["stats"]["unique_graphs"], found


def told(found: list[Finding]) -> list[tuple[str, ...]]:
    return sorted((one.rule, one.severity, one.message, one.where, one.cause) for one in found)


@pytest.mark.parametrize("make", MAKES, ids=["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("compiled", [in_a_function, itself])
def test_a_compiled_step_has_its_numbers_and_its_code(compiled: Any, make: Any) -> None:
    alone, graphs, _ = run(as_it_should_be, make, compiled, recorded=False)
    watched, compiled_then, found = run(as_it_should_be, make, compiled, recorded=True)
    assert all(map(torch.equal, watched, alone))
    assert compiled_then == graphs > 0
    assert told(found) == told(run(as_it_should_be, make, by_python, recorded=True)[2])


@pytest.mark.parametrize("compiled", [in_a_function, itself])
@pytest.mark.parametrize("steps", MISTAKES)
def test_what_is_wrong_with_a_compiled_step_is_said_as_of_any(steps: Steps, compiled: Any) -> None:
    _, graphs, found = run(steps, MAKES[0], compiled, recorded=True)
    assert graphs > 0
    _, _, eager = run(steps, MAKES[0], by_python, recorded=True)
    ours = [one for one in found if one.rule not in ("compile-recompile", "compile-graph-break")]
    assert [row[:2] for row in told(ours)] == [row[:2] for row in told(eager)] != []
