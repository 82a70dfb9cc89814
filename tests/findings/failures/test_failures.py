"""Findings on a backward that failed in a custom Function, in a hook, or was not to blame."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from graphviz_torch import find, record
from tests.support.failing import failing, leaf, line
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


class Broken(Function):
    """Its backward does what it was told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.run(gradient), None


def refuse(gradient: Tensor) -> Tensor:
    raise RuntimeError("no gradient today")  # raises


@pytest.mark.parametrize(
    ("backward", "said"), [(refuse, "no gradient today"), (lambda g: g[0], "invalid gradient")]
)
def test_a_custom_function_whose_backward_fails(
    backward: Callable[[Tensor], Tensor], said: str
) -> None:
    x = leaf()

    def program() -> None:
        y = Broken.apply(x.exp(), backward)  # custom
        y.sin().sum().backward()

    graph = failing(program, said)
    found = only("failed", graph)
    assert f", in Broken at {line(program, 'custom')}" in found.message
    assert graph.failure is not None
    assert graph.nodes[graph.failure.node or 0].name == "BrokenBackward"


def test_an_error_in_a_hook_is_no_nodes() -> None:
    def program() -> None:
        h = leaf().exp()
        h.register_hook(refuse)
        h.sum().backward()

    graph = failing(program, "no gradient today")
    assert graph.failure is not None
    assert graph.failure.node is None


def test_an_error_after_one_that_was_caught_is_its_own() -> None:
    def program() -> None:
        h = leaf().exp()
        h += 1
        with suppress(RuntimeError):
            h.sum().backward()
        raise RuntimeError("no such file")

    (found,) = [f for f in find(failing(program, "no such file")) if f.severity == "error"]
    assert found.rule == "failed"
    assert "no such file" in found.message


def test_an_error_of_a_hooks_result_is_no_nodes() -> None:
    def program() -> None:
        h = leaf().exp()
        h.register_hook(lambda gradient: gradient[0])
        h.sin().sum().backward()

    graph = failing(program, "has changed the size")
    assert graph.failure is not None
    assert graph.failure.node is None


def test_an_input_that_was_not_used_is_no_nodes() -> None:
    x, z = leaf(), leaf()
    graph = failing(lambda: torch.autograd.grad(x.exp().sum(), [x, z]), "not have been used")
    assert graph.failure is not None
    assert graph.failure.node is None


def test_a_backward_that_failed_says_nothing_of_cuts_and_optimizers() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def program() -> None:
        optimizer.step()
        y = Broken.apply(model(torch.ones(2, 3)), refuse)
        other(y).sum().backward()

    rules = {f.rule for f in find(failing(program, "no gradient today")) if f.severity != "info"}
    assert rules == {"failed"}


def test_the_line_inside_the_custom_function_is_told() -> None:
    x = leaf()
    graph = failing(lambda: Broken.apply(x, refuse).sum().backward(), "no gradient today")
    assert only("failed", graph).where == line(refuse, "raises")


def test_an_exception_that_was_caught_is_not_held() -> None:
    with record():
        x = torch.ones(3)
        activation = torch.ones(5)
        gone = weakref.ref(activation)
        with suppress(RuntimeError):
            x + activation
        del activation
        gc.collect()
        assert gone() is None
