"""Test that each graph break and recompilation is reported once, with its line.

The backend counts the graphs that it compiles.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

from graphviz_torch import find, record
from graphviz_torch.graph import Finding
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401

LINEAR = nn.Linear(4, 4)
LOGGER = logging.getLogger(__name__)
Function = Callable[..., Tensor]


def prints(x: Tensor) -> Tensor:
    y = LINEAR(x)
    print("step")  # here
    return y.sum()


def logs(x: Tensor) -> Tensor:
    y = LINEAR(x)
    LOGGER.debug("step")  # here
    return y.sum()


def gives_a_number(x: Tensor) -> Tensor:
    y = LINEAR(x)
    factor = y.sum().item()  # here
    return (y * factor).sum()


def branches(x: Tensor) -> Tensor:
    y = LINEAR(x)
    if y.sum() > 0:  # here
        y = y * 2
    return y.sum()


def takes_what_is_positive(x: Tensor) -> Tensor:
    y = LINEAR(x)
    z = y[y > 0]  # here
    return z.sum() + y.sum()


def prints_outside(x: Tensor) -> Tensor:
    return LINEAR(x).sum()


def chooses(x: Tensor) -> Tensor:
    y = LINEAR(x)
    return torch.where(y.sum() > 0, y * 2, y).sum()


def keeps_the_size(x: Tensor) -> Tensor:
    y = LINEAR(x)
    return torch.where(y > 0, y, 0.0).sum() + y.sum()


def keeps_a_tensor(x: Tensor) -> Tensor:
    y = LINEAR(x)
    return (y * y.sum().detach()).sum()


@torch.compiler.disable
def apart(y: Tensor) -> Tensor:
    return y * 2


def calls_what_is_meant_to_stay_in_python(x: Tensor) -> Tensor:
    return apart(LINEAR(x)).sum()


class Backend:
    """A backend that counts the graphs that it compiles."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, examples: Any) -> Any:
        self.graphs += 1
        return aot_eager(module, examples)


def compiled(function: Function) -> tuple[Function, Backend]:
    torch._dynamo.reset()
    backend = Backend()
    return torch.compile(function, backend=backend), backend


def told(function: Function, *args: Any) -> list[Finding]:
    with record() as recording:
        function(torch.linspace(-1, 1, 12).view(3, 4), *args).backward()
    return [
        one for one in find(recording) if one.rule in ("compile-graph-break", "compile-recompile")
    ]


def line_of(function: Function) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_breaks.py:{first + next(i for i, at in enumerate(lines) if '# here' in at)}"


BREAKS: list[tuple[Function, Function, str]] = [
    (prints, prints_outside, "print() is not compiled"),
    (logs, prints_outside, "a logger is not compiled"),
    (gives_a_number, keeps_a_tensor, "item() returns a Python number"),
    (branches, chooses, "a Python branch depends on the value of a tensor"),
    (takes_what_is_positive, keeps_the_size, "the size of a result depends on values"),
]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(
    ("breaks", "followed", "why"), BREAKS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_break_is_told_with_its_line_and_is_gone_where_its_advice_is_followed(
    breaks: Function, followed: Function, why: str, warm: bool
) -> None:
    for function, graphs in ((breaks, 2), (followed, 1)):
        run, backend = compiled(function)
        if warm:
            run(torch.linspace(-1, 1, 12).view(3, 4))
        said = [
            (one.where, why in one.message)
            for one in told(run)
            if one.rule == "compile-graph-break"
        ]
        assert said == ([(line_of(breaks), True)] if function is breaks else [])
        assert backend.graphs == graphs


def chooses_a_branch(x: Tensor) -> Tensor:
    y = LINEAR(x)
    return torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y + 0, (y,)).sum()


SETTINGS: list[tuple[Function, dict[str, Any]]] = [
    (prints, {"reorderable_logging_functions": {print}}),
    (gives_a_number, {"capture_scalar_outputs": True}),
    (takes_what_is_positive, {"capture_dynamic_output_shape_ops": True}),
    (chooses_a_branch, {}),
]


@pytest.mark.parametrize(
    ("function", "settings"), SETTINGS, ids=[one.__name__ for one, _ in SETTINGS]
)
def test_the_other_way_out_that_an_advice_names_leaves_one_region(
    function: Function, settings: dict[str, Any]
) -> None:
    with torch._dynamo.config.patch(settings):
        run, backend = compiled(function)
        assert not told(run)
    assert backend.graphs == 1


def test_what_is_meant_to_stay_in_python_is_not_told() -> None:
    run, backend = compiled(calls_what_is_meant_to_stay_in_python)
    assert not told(run)
    assert backend.graphs >= 1


def test_a_region_without_a_break_is_silent_and_so_is_one_that_is_used_again() -> None:
    run, _ = compiled(prints_outside)
    assert not told(run)
    assert not told(run)


def scaled(x: Tensor, factor: Any) -> Tensor:
    return (LINEAR(x) * factor).sum()


def test_a_number_that_is_compiled_in_is_told_and_a_tensor_in_its_place_is_compiled_once() -> None:
    run, backend = compiled(scaled)
    assert not told(run, 1.5)
    [found] = told(run, 2.5)
    assert found.where == f"test_breaks.py:{scaled.__code__.co_firstlineno}"
    assert "factor == 1.5" in found.message
    assert found.advice.startswith("Pass factor as a tensor")
    assert backend.graphs == 2

    run, backend = compiled(scaled)
    told(run, torch.tensor(1.5))
    assert not told(run, torch.tensor(2.5))
    assert backend.graphs == 1


def test_another_size_is_told_and_compiled_for_all_sizes_it_is_compiled_once() -> None:
    for dynamic in (None, True):
        torch._dynamo.reset()
        run = torch.compile(prints_outside, backend="aot_eager", dynamic=dynamic)
        run(torch.ones(3, 4))
        with record() as recording:
            run(torch.ones(5, 4)).backward()
        messages = [one.message for one in find(recording) if one.rule == "compile-recompile"]
        assert len(messages) == (dynamic is None)
        assert all("size mismatch at index 0. expected 3, actual 5" in one for one in messages)


def only_counts(x: Tensor, factor: float) -> float:
    return factor + 1


def test_what_was_compiled_again_without_a_graph_is_not_told_of_another_function() -> None:
    """Nor in a later recording."""
    torch._dynamo.reset()
    count, run = (
        torch.compile(only_counts, backend="aot_eager"),
        torch.compile(prints_outside, backend="aot_eager"),
    )
    with record():
        for factor in (1.5, 2.5, 3.5):
            count(torch.ones(3, 4), factor)
    assert not told(run)


def test_a_compiled_step_of_an_optimizer_is_recorded_and_no_warning_is_caused() -> None:
    def trained(watched: bool) -> tuple[list[torch.Tensor], int, list[str], list[bool | None]]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        counters.clear()
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch.compile(optimizer.step, backend="aot_eager")
        stepped: list[bool | None] = []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with record(model) if watched else nullcontext() as recording:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.randn(8, 4)).square().mean().backward()
                    step()
        if recording is not None:
            stepped = [p.stepped for p in recording.graph.parameters]
        said = [str(each.message) for each in told]
        return [*model.parameters()], counters["stats"]["unique_graphs"], said, stepped

    bare, graphs, _, _ = trained(False)
    weights, same, said, stepped = trained(True)
    assert all(map(torch.equal, bare, weights))
    assert same == graphs
    assert not [text for text in said if "Dynamo" in text]
    assert stepped == [True] * 4
