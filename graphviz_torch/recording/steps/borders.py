"""Where the steps of a training end, whoever changes the parameters.

    an optimizer of torch.optim     where it has stepped, or a GradScaler has skipped its step
    none, a change by hand          where the program changes the first parameter after a backward,
                                    by an in-place call or by `.data`, and has read its gradient
    none, no change                 where it sets the first gradient to None after a backward; else
                                    at each backward, from the eighth on

Told is the thread that opens it. What the program calls is looked at until the first optimizer
steps; with a GradScaler to the end. Not seen: what C++ and compiled code change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import get_ident
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...internals import tasks
from ...internals.frames import OTHER, owner
from ...internals.functions import UNSCALE, UPDATE_SCALE
from ...internals.hooks.calls import Called, CallWatch
from ...internals.hooks.optimizers import Stepped, Stepping, StepWatch, optimized_parameters
from ...internals.hooks.regions import RegionWatch
from ...internals.tensors.memory import storage_id
from ...internals.tensors.pytree import tensors
from ..compiled.trace import OperationTrace
from ..failures.in_place import IN_PLACE

_grad: Any = Tensor.grad
_data: Any = Tensor.data
_BACKWARDS = frozenset((Tensor.backward, torch.autograd.backward))
_CHANGES = IN_PLACE - {UNSCALE, UPDATE_SCALE}
_MOST = 8  # backwards in a step of a program without optimizer that changes nothing


class StepBorders:
    """Calls a function wherever a step of a training ends, in this thread, until `close()`.

    A step ends where an optimizer has stepped; without one, where the program changes a parameter
    by hand after a backward; else at each backward.

    Args:
        ended: is called without arguments. What it raises comes out of the training.

    >>> weight, losses = torch.ones(2, requires_grad=True), []
    >>> optimizer = torch.optim.SGD([weight], lr=0.25)
    >>> with StepBorders(lambda: losses.append(loss.item())):
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = weight.square().sum()
    ...         loss.backward()
    ...         optimizer.step()
    >>> losses
    [2.0, 0.5, 0.125]
    """

    functions = _CHANGES | _BACKWARDS | {_grad.__get__, _grad.__set__, _data.__set__}
    functions |= {torch.autograd.grad, UNSCALE, UPDATE_SCALE}

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._thread = 0
        self._key = object()
        self._calls = CallWatch((self,), self._key, _raise)
        self._regions = RegionWatch(OperationTrace)
        self._steps = StepWatch(self._stepping, self._stepped)
        self._looks = False  # at calls
        self._running = False  # an optimizer's step
        self._scales = False  # with a GradScaler
        self._most = float(_MOST)  # backwards in a step
        self._backwards = 0  # since the last step ended
        self._read: set[int] = set()  # storages of leaves whose gradient the program has read

    def open(self) -> None:
        """Look from now on, in this thread."""
        self._thread = get_ident()
        tasks.enter(self._key)
        self._steps.open()
        self._looks = True
        self._regions.__enter__()
        self._calls.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Look no more, if it does."""
        self._steps.close()
        self.rest()

    def rest(self) -> None:
        """From now on only optimizers end steps: no call is looked at."""
        if self._looks:
            self._looks = False
            self._calls.__exit__(None, None, None)
            self._regions.__exit__(None, None, None)
            tasks.leave(self._key)

    def __enter__(self) -> StepBorders:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def called(self, event: Called) -> None:
        """A call into torch that may end a step."""
        ends = False
        with suppress(Exception):  # a tensor that cannot be read
            ends = not self._running and self._is_end(event)
        if ends:
            self._end()

    def _is_end(self, event: Called) -> bool:
        func, args = event.func, event.args
        if func in _BACKWARDS:
            self._backwards += 1
            if self._backwards < self._most or optimized_parameters():
                return False
            self._most = 1
            return True
        if func is UNSCALE:
            self._scales = True
        elif func is torch.autograd.grad:
            inputs = args[1] if len(args) > 1 else (event.kwargs or {}).get("inputs")
            self._take(tensors(inputs))
        elif not self._backwards and not self._read:
            return False
        elif func is UPDATE_SCALE:  # where the optimizer has stepped, that was the end
            return True
        elif func == _grad.__get__:
            if owner(event.frame.f_code.co_filename) != OTHER:
                self._take(args[:1])
        elif func == _grad.__set__:
            return args[1] is None and self._backwards > 0 and not optimized_parameters()
        elif any(storage_id(each) in self._read for each in tensors(args[0])):
            self._read.clear()
            if not optimized_parameters():  # else it perturbs them, as an attack does
                self._most = math.inf
                return True
        return False

    def _take(self, parameters: Iterable[Tensor]) -> None:
        """The program reads the gradients of these."""
        self._read.update(storage_id(each) for each in parameters if each.is_leaf)

    def _stepping(self, event: Stepping) -> None:
        if get_ident() == self._thread:
            self._running = True
            if not self._scales:
                self.rest()

    def _stepped(self, event: Stepped) -> None:
        if get_ident() == self._thread:
            self._running = False
            self._end()

    def _end(self) -> None:
        self._backwards = 0
        self._read.clear()
        self._ended()


def _raise(error: Exception) -> NoReturn:
    raise error
