"""Test hooks that are added to many nodes at once, in addition to other hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphviz_torch.internals.hooks.nodes import Hooks
from tests.support.programs import function, in_threads


def chain() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(3, requires_grad=True)
    return x, (x * 2).sum()


def test_hooks_see_what_the_node_is_given_until_they_are_removed() -> None:
    x, y = chain()
    seen: list[list[float]] = []
    hooks = Hooks()
    multiply = y.grad_fn.next_functions[0][0]
    hooks.put([(multiply.register_prehook, lambda grads: seen.append(grads[0].tolist()))])
    y.backward(retain_graph=True)
    hooks.remove()
    y.backward()
    assert seen == [[1.0, 1.0, 1.0]]
    assert x.grad.tolist() == [4.0, 4.0, 4.0]


def test_hooks_of_others_on_the_same_node_stay_whenever_they_came() -> None:
    _, y = chain()
    order: list[str] = []
    before = y.grad_fn.register_prehook(lambda _: order.append("before"))
    hooks = Hooks()
    hooks.put([(y.grad_fn.register_prehook, lambda _: order.append("ours"))])
    after = y.grad_fn.register_prehook(lambda _: order.append("after"))
    y.backward(retain_graph=True)
    hooks.remove()
    y.backward(retain_graph=True)
    before.remove()
    after.remove()
    y.backward()
    assert order == ["before", "ours", "after", "before", "after"]


def test_pytorch_is_left_as_it_was_also_if_a_hook_is_refused() -> None:
    _, y = chain()
    known = dict(vars(torch.autograd.Function))
    called: list[str] = []

    def refuse(_: Any) -> None:
        raise RuntimeError("refused")

    hooks = Hooks()
    ours = (y.grad_fn.register_prehook, lambda _: called.append("ours"))
    with pytest.raises(RuntimeError, match="refused"):
        hooks.put([ours, (refuse, lambda _: None)])
    y.backward()
    assert not called
    assert dict(vars(torch.autograd.Function)) == known


def test_another_thread_that_hooks_meanwhile_gets_a_handle() -> None:
    (_, y), (_, other) = chain(), chain()
    handles: list[Any] = []
    called: list[str] = []

    def register(hook: Any) -> Any:
        theirs = lambda: other.grad_fn.register_prehook(lambda _: called.append("theirs"))  # noqa: E731
        handles.extend(in_threads(theirs))
        return y.grad_fn.register_prehook(hook)

    hooks = Hooks()
    hooks.put([(register, lambda _: called.append("ours"))])
    hooks.remove()
    other.backward(retain_graph=True)
    handles[0].remove()
    other.backward()
    assert called == ["theirs"]


def test_a_custom_function_is_hooked_like_any_other() -> None:
    double = function(lambda ctx, x: x * 2, lambda ctx, gradient: gradient * 2)
    y = double.apply(torch.ones(2, requires_grad=True))
    seen: list[list[float]] = []
    hooks = Hooks()
    hooks.put([(y.grad_fn.register_prehook, lambda grads: seen.append(grads[0].tolist()))])
    y.sum().backward()
    hooks.remove()
    assert seen == [[1.0, 1.0]]
