"""Test that the cost and memory of a recorded call do not grow with the number of calls.

Function calls in Python and C, and Python's peak memory, are counted instead of time.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import record
from tests.support.programs import function

Same = function(lambda ctx, x: x.clone(), lambda ctx, gradient: gradient)


def weight() -> Tensor:
    return torch.ones(1, requires_grad=True)


def under_no_grad(n: int) -> Tensor:
    x, w = torch.ones(1), weight()
    with torch.no_grad():
        for _ in range(n):
            x = torch.tanh(x * w)
    return x


def many_weights(n: int) -> Tensor:
    x = torch.ones(1)
    with torch.no_grad():
        for w in [nn.Parameter(torch.ones(1)) for _ in range(n)]:
            x = x * w
    return x


def deep_module(n: int) -> Tensor:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(n)))
    with torch.no_grad():
        out: Tensor = model(torch.ones(1, 1))
    return out


def functions(n: int) -> Tensor:
    x = weight()
    for _ in range(n):
        x = Same.apply(x)  # type: ignore[no-untyped-call]
    return x


def detached(n: int) -> Tensor:
    x, w = torch.ones(1), weight()
    for _ in range(n):
        x = torch.tanh(x * w).detach()
    return x


def summed(n: int) -> Tensor:
    total, w = torch.zeros(1), weight()
    for _ in range(n):
        total = total + (w * 2).detach()
        total.item()
    return total


CHAINS: list[Callable[[int], Tensor]] = [
    *(under_no_grad, many_weights, deep_module, functions, detached, summed)
]


def work(chain: Callable[[int], Tensor], n: int) -> tuple[int, int]:
    """Calls made while recording a chain that comes back into a graph, and bytes at the most."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    def recorded() -> None:
        with record() as recording:
            result = chain(n)
            (result * weight()).sum().backward()
        assert recording.graph.nodes

    sys.setprofile(counted)
    try:
        recorded()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        recorded()
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)
def test_a_chain_ten_times_as_long_takes_ten_times_as_much(chain: Any) -> None:
    work(chain, 10)
    calls, memory = work(chain, 40)
    more_calls, more_memory = work(chain, 400)
    assert more_calls <= 12 * calls
    assert more_memory <= 12 * memory


def test_a_cut_at_the_far_end_of_a_long_chain_is_found_with_what_used_it() -> None:
    w = weight()
    with record() as recording:
        x = (w * 3).detach()
        for _ in range(5000):
            x = x + 1
        y = x * weight()
        y.sum().backward()
    (cut,) = recording.graph.cuts
    nodes = recording.graph.nodes
    assert cut.how == "detach"
    assert nodes[cut.before or 0].title == "mul"
    assert [nodes[i].title for i in cut.after] == ["mul"]


def test_what_a_long_chain_was_cut_off_from_is_let_go_with_its_last_result() -> None:
    gone: list[bool] = []

    class Noted:
        def __del__(self) -> None:
            gone.append(True)

    with record():
        h = weight() * 2
        h.grad_fn.metadata["noted"] = Noted()
        x = h.detach()
        del h
        for _ in range(100):
            x = x + 1
        assert not gone
        del x
        assert gone
