"""A program that nearly reaches the recursion limit runs recorded as it runs bare."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import graphviz_torch as gt


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


def test_nested_modules_and_a_recursive_function_reach_the_same_depth_recorded() -> None:
    limit = sys.getrecursionlimit()
    depth = max(n for n in range(1, limit // 3) if n % 4 == 0 and runs(n))
    calls = limit
    while True:
        try:
            recurse(calls)
            break
        except RecursionError:
            calls -= 1
    with gt.record():
        assert runs(depth)
        assert recurse(calls) == calls
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_the_program_sets_itself_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with gt.record(), gt.record():
            sys.setrecursionlimit(limit + 7)
        assert sys.getrecursionlimit() == limit + 7
    finally:
        sys.setrecursionlimit(limit)
