"""Test recorded programs that nearly reach the recursion limit."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import graphviz_torch as gt
from graphviz_torch.integrations.training import record_steps


class Outer(nn.Module):
    """A module that calls another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def runs(depth: int) -> bool:
    """Return whether modules nested so deeply run."""
    model: nn.Module = nn.Identity()
    for _ in range(depth):
        model = Outer(model)
    try:
        model(torch.ones(1))
    except RecursionError:
        return False
    return True


def recurse(depth: int) -> int:
    return recurse(depth - 1) + 1 if depth else 0


def depths() -> tuple[int, int]:
    """Return how deeply modules and calls of a function can be nested here."""
    limit = sys.getrecursionlimit()
    modules = max(n for n in range(100, limit // 3) if n % 4 == 0 and runs(n))
    calls = limit
    while True:
        try:
            return modules, recurse(calls)
        except RecursionError:
            calls -= 1


def reach(depths: tuple[int, int]) -> bool:
    """Return whether modules and calls can be nested so deeply here."""
    modules, calls = depths
    try:
        return runs(modules) and recurse(calls) == calls
    except RecursionError:
        return False


def test_nested_modules_and_a_recursive_function_reach_the_same_depth_recorded() -> None:
    limit, bare = sys.getrecursionlimit(), depths()
    with gt.record():
        assert reach(bare)
    assert sys.getrecursionlimit() == limit


def test_modules_and_a_function_reach_the_same_depth_while_a_training_is_watched() -> None:
    limit, bare = sys.getrecursionlimit(), depths()
    with gt.watch(Outer(nn.Linear(1, 1))):  # of the class that is nested
        assert reach(bare)
        with gt.record():
            assert reach(bare)
    assert sys.getrecursionlimit() == limit


def test_steps_of_a_loop_that_are_not_recorded_reach_the_same_depth() -> None:
    limit, bare = sys.getrecursionlimit(), depths()
    model = Outer(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record_steps(model, every=2):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1)).sum().backward()
            assert reach(bare)
            optimizer.step()
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_the_program_sets_itself_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with gt.record(), gt.record():
            sys.setrecursionlimit(limit + 7)
        assert sys.getrecursionlimit() == limit + 7
    finally:
        sys.setrecursionlimit(limit)
