"""Parts of test programs: threads, modes that record calls, and custom functions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def in_threads(*actions: Callable[[], Any]) -> list[Any]:
    """Call all actions at the same time, each in a new thread; return their results."""
    with ThreadPoolExecutor(len(actions)) as threads:
        return [ended.result() for ended in [threads.submit(action) for action in actions]]


class Operators(TorchDispatchMode):
    """A mode that lists the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """A mode that lists the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def function(run: Callable[..., Any], back: Callable[..., Any]) -> type[Function]:
    """Return a custom function with this forward and backward; both get the context first."""

    class Custom(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            return run(ctx, *inputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return back(ctx, *gradients)

    return Custom
