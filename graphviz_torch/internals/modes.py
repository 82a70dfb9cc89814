"""PyTorch's two stacks of modes: a mode below the others, and out again wherever it stands.

A mode that ends takes the uppermost one off the stack of the thread that ends it. So where modes
end in another order than they began, or in another thread, the wrong one is lost. Here a mode takes
itself; where it is out of reach, in another thread's stack or in a call that is running, it passes
everything from then on, and goes when a mode of that thread next ends through here.

Private: the stacks themselves (2.11 to 2.14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode


class _EndedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a mode becomes that has ended out of reach."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _EndedFunctions(TorchFunctionMode):
    """What a mode becomes that has ended out of reach."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Stack(NamedTuple):
    """One of the stacks, of the thread that asks."""

    pop: Callable[[], Any]
    push: Callable[[Any], None]
    size: Callable[[], int]
    leave: Callable[..., None]  # a mode of this stack that is uppermost
    ended: type


OPERATORS = Stack(
    _pop_mode,
    _push_mode,
    torch._C._len_torch_dispatch_stack,
    TorchDispatchMode.__exit__,
    _EndedOperators,
)
FUNCTIONS = Stack(
    overrides._pop_mode,
    overrides._push_mode,
    torch._C._len_torch_function_stack,
    TorchFunctionMode.__exit__,
    _EndedFunctions,
)


def enter_below(mode: Any, stack: Stack) -> None:
    """Enter a mode, and put it below those that are there."""
    above = _lift(stack)
    try:
        mode.__enter__()
    finally:
        _lower(stack, above)


def leave(mode: Any, stack: Stack) -> None:
    """Leave a mode, wherever it stands."""
    above = _lift(stack)
    rest = [other for other in above if other is not mode and type(other) is not stack.ended]
    try:
        if any(other is mode for other in above):
            stack.push(mode)
            stack.leave(mode, None, None, None)
        else:
            mode.__class__ = stack.ended
    finally:
        _lower(stack, rest)


def _lift(stack: Stack) -> list[Any]:
    above: list[Any] = []
    while stack.size():
        mode = stack.pop()
        if isinstance(mode, DeviceContext):  # that one insists on the bottom
            stack.push(mode)
            break
        above.append(mode)
    return above


def _lower(stack: Stack, above: list[Any]) -> None:
    for mode in reversed(above):
        stack.push(mode)
