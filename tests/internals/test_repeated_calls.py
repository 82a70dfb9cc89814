"""Calls of a block, repeated on copies: their derivative is that of the block, seen by nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphviz_torch.internals.repeated_calls import ReplayedCalls, derivative


def repeat(block: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """Return the result of a block that ran without gradients, and the gradients of its calls."""
    calls = ReplayedCalls([x], [])
    with calls, torch.no_grad():
        result = block(x)
    replayed = calls.replay([result])
    if replayed is None:
        return result, []
    leaves, copies = replayed
    return result, derivative(leaves, copies, [torch.ones_like(result)])


def in_place(x: Tensor) -> Tensor:
    out = torch.zeros(3, 4)
    out[1:] = x.detach()[:2] * 3
    out.T[0].add_(x.sum())
    return out


def read_twice(x: Tensor) -> Tensor:
    first, second = x.chunk(2, 1)
    return torch.cat([first.exp(), second], 1).softmax(-1) if x.sum() < 1e9 else x


@pytest.mark.parametrize("block", [in_place, read_twice, Tensor.cumsum, torch.linalg.inv])
def test_the_derivative_is_that_of_the_block_with_gradients(block: Callable[..., Tensor]) -> None:
    if block is Tensor.cumsum:
        block = lambda x: x.cumsum(1) ** 2  # noqa: E731
    x = torch.randn(4, 4)
    _, (found,) = repeat(block, x)
    leaf = x.clone().requires_grad_()
    # `detach` has no meaning in the forward of a Function, where gradients are off.
    original = Tensor.detach
    Tensor.detach = lambda self: self.view_as(self)  # type: ignore[method-assign]
    try:
        block(leaf * 1).sum().backward()
    finally:
        Tensor.detach = original  # type: ignore[method-assign]
    assert found is not None
    assert torch.allclose(found, leaf.grad)  # type: ignore[arg-type]


HIDDEN = torch.ones(4, 4)
UNREPEATABLE: list[Callable[[Tensor], Tensor]] = [
    lambda x: x * torch.rand(4),
    lambda x: x * x.sum().item(),
    lambda x: x + torch.from_numpy(x.numpy() * 2),
    lambda x: x.round() * x,
    lambda x: x.int().float() * x,
    lambda x: x * HIDDEN,  # a tensor that may have been computed from the input, unseen
    lambda x: torch.nn.functional.dropout(x),
]


@pytest.mark.parametrize("block", UNREPEATABLE)
def test_what_autograd_cannot_differentiate_by_its_calls_is_not_repeated(
    block: Callable[[Tensor], Tensor],
) -> None:
    assert repeat(block, torch.randn(4, 4))[1] == []


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_the_repetition_changes_no_value_and_no_random_state_and_is_seen_by_no_mode() -> None:
    x = torch.randn(4, 4)
    before, state = x.clone(), torch.get_rng_state()
    calls = ReplayedCalls([x], [])
    with calls, torch.no_grad():
        result = in_place(x)
    packed: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
    given = torch.ones(3, 4)
    with hooks, torch.no_grad(), Seen() as seen:
        replayed = calls.replay([result])
        assert replayed is not None
        derivative(*replayed, [given])
    assert torch.is_grad_enabled()
    assert (seen.calls, packed) == (0, [])
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert x.grad is None
