"""PyTorch's two stacks of modes: a mode below the others, and out again wherever it stands.

A mode that ends takes the uppermost one off the stack of the thread that ends it. So where modes
end in another order than they began, or in another thread, the wrong one is lost. Here a mode takes
itself; where it is out of reach, in another thread's stack or in a call that is running, it passes
everything from then on, and goes when a mode of that thread next ends through here.

Beside them: contexts in which what we read of a tensor is seen by nobody.

Private: the stacks themselves, and `DisableTorchFunction`, `_DisableTorchDispatch` (2.11 to 2.14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

unseen_calls: Any = torch._C.DisableTorchFunction  # no mode and no subclass sees calls into torch
others: Any = torch._C._len_torch_function_stack  # how many modes see a call that is made here
unseen_operators: Any = torch._C._DisableTorchDispatch  # nor operators


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

    now: Callable[[], list[Any]]  # the uppermost last
    pop: Callable[[], Any]
    push: Callable[[Any], None]
    leave: Callable[..., None]  # a mode of this stack that is uppermost
    ended: type


OPERATORS = Stack(
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
    TorchDispatchMode.__exit__,
    _EndedOperators,
)
FUNCTIONS = Stack(
    overrides._get_current_function_mode_stack,
    overrides._pop_mode,
    overrides._push_mode,
    TorchFunctionMode.__exit__,
    _EndedFunctions,
)


def enter_below(mode: Any, stack: Stack) -> None:
    """Enter a mode, and put it below those that are there."""
    others = movable(stack)
    try:
        mode.__enter__()
    finally:
        arrange(stack, [mode, *others] if _holds(stack, mode) else others)


def leave(mode: Any, stack: Stack) -> None:
    """Leave a mode, wherever it stands; one that is not on the stack becomes an ended one."""
    others = (other for other in movable(stack) if type(other) is not stack.ended)
    rest = [other for other in others if other is not mode]
    try:
        if _holds(stack, mode):
            arrange(stack, [*rest, mode])
            stack.leave(mode, None, None, None)
        else:
            mode.__class__ = stack.ended
    finally:
        arrange(stack, rest)


def _holds(stack: Stack, mode: Any) -> bool:
    return any(other is mode for other in stack.now())


def movable(stack: Stack) -> list[Any]:
    """The modes that can stand in any order, the uppermost last.

    Not PyTorch's own for fake tensors and the like, which have fixed places; nor the default
    device's, which insists on the bottom.
    """
    modes = [mode for mode in stack.now() if getattr(mode, "_mode_key", None) is None]
    bottom = [i for i, mode in enumerate(modes) if isinstance(mode, DeviceContext)]
    return modes[bottom[-1] + 1 :] if bottom else modes


def arrange(stack: Stack, modes: list[Any]) -> None:
    """Let these be the movable modes. Done once more if a Ctrl-C comes between."""
    try:
        _put(stack, modes)
    except BaseException:
        _put(stack, modes)
        raise


def _put(stack: Stack, modes: list[Any]) -> None:
    now = movable(stack)
    alike = 0
    while alike < min(len(now), len(modes)) and now[alike] is modes[alike]:
        alike += 1
    for _ in now[alike:]:
        stack.pop()
    for mode in modes[alike:]:
        stack.push(mode)
