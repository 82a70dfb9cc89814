"""Enter a torch mode below the modes that are active, and leave it from any position in the stack.

A mode that exits pops the top of the exiting thread's stack. If modes exit in another order than
they were entered, or in another thread, the wrong mode is removed. The functions here remove the
mode itself. A mode that cannot be removed, because it is in another thread's stack or in a running
call, becomes a pass-through mode, and is removed at the next `leave` in that thread.

The file also has context managers that hide our reads of tensors from modes.

Uses private API: the mode stacks, `DisableTorchFunction` and `_DisableTorchDispatch` (2.11 to
2.14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

# Hides calls into torch from function modes and subclasses.
from ...graph.immutable import NamedTuple

unseen_calls: Any = torch._C.DisableTorchFunction
# Returns the number of active function modes.
function_mode_count: Any = torch._C._len_torch_function_stack
unseen_operators: Any = torch._C._DisableTorchDispatch  # hides operators from dispatch modes, too


class _EndedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A pass-through dispatch mode: a mode that ended but could not be removed gets this class."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _EndedFunctions(TorchFunctionMode):
    """A pass-through function mode: a mode that ended but could not be removed gets this class."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Stack(NamedTuple):
    """Functions that access one of this thread's two stacks: of function or dispatch modes."""

    now: Callable[[], list[Any]]  # returns the modes, top of the stack last
    pop: Callable[[], Any]
    push: Callable[[Any], None]
    leave: Callable[..., None]  # exits a mode at the top of the stack
    ended: type  # class of the modes that ended but could not be removed


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
    """Enter a torch function or dispatch mode, below the modes that are already active.

    Args:
        mode: the mode.
        stack: accesses the stack of modes of this kind.
    """
    others = movable(stack)
    try:
        mode.__enter__()
    finally:
        arrange(stack, [mode, *others] if _contains(stack, mode) else others)


def leave(mode: Any, stack: Stack) -> None:
    """Exit a torch function or dispatch mode, wherever it is in the stack.

    If the stack does not contain `mode`, it becomes a pass-through mode.
    """
    others = (other for other in movable(stack) if type(other) is not stack.ended)
    rest = [other for other in others if other is not mode]
    try:
        if _contains(stack, mode):
            arrange(stack, [*rest, mode])
            stack.leave(mode, None, None, None)
        else:
            mode.__class__ = stack.ended
    finally:
        arrange(stack, rest)


def _contains(stack: Stack, mode: Any) -> bool:
    return any(other is mode for other in stack.now())


def movable(stack: Stack) -> list[Any]:
    """Return the modes of a stack whose order can be changed, top of the stack last.

    PyTorch's infrastructure modes, such as that of fake tensors, have fixed positions, and the mode
    of the default device has to stay at the bottom.
    """
    modes = [mode for mode in stack.now() if getattr(mode, "_mode_key", None) is None]
    bottom = [i for i, mode in enumerate(modes) if isinstance(mode, DeviceContext)]
    return modes[bottom[-1] + 1 :] if bottom else modes


def arrange(stack: Stack, modes: list[Any]) -> None:
    """Set the order of the movable modes; if an interrupt stops this, set the order again.

    Args:
        stack: accesses the stack.
        modes: the movable modes in the new order, top of the stack last.
    """
    try:
        _restack(stack, modes)
    except BaseException:
        _restack(stack, modes)
        raise


def _restack(stack: Stack, modes: list[Any]) -> None:
    now = movable(stack)
    alike = 0
    while alike < min(len(now), len(modes)) and now[alike] is modes[alike]:
        alike += 1
    for _ in now[alike:]:
        stack.pop()
    for mode in modes[alike:]:
        stack.push(mode)
