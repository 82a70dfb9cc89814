"""Find where a training step ends and the next one begins.

A training step ends with a tail: the code between the optimizer's step and the next training step.
Examples are schedulers, logging, averages of weights, and other optimizers that step after the same
backward. If a GradScaler skips the optimizer's step, the tail begins there. The next training step
begins at the first of these:

    a batch is requested            from a DataLoader
    a module's forward              the outermost one, of a module with parameters
    a call with a parameter         that may create a node, as in a forward without modules
    gradients are cleared           by `zero_grad` or `.grad = None`; the step begins at the next
                                    call with a tensor, because another optimizer may still step
    a backward
    the same optimizer steps again  or another optimizer steps, and nodes were created in between
    a CUDA graph capture            captured operations belong to no step

If the program has no optimizer, steps have no tail, and end as follows:

    with updates by hand            where the program, after a backward, first changes a parameter
                                    whose gradient it read
    without updates                 where the program, after a backward, first sets a gradient to
                                    None; if it never does, at each backward from the eighth on

Only the thread that called `open` is observed. Calls into torch are observed until the first
optimizer steps, and after that only in tails. For a program with a GradScaler they are always
observed. Updates by C++ and compiled code are not observed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from threading import current_thread, get_ident
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...internals.exceptions import ignore_exceptions
from ...internals.frames import OTHER, code_owner, enter_program, leave_program
from ...internals.functions import METADATA_CALLS, UNSCALE, UPDATE_SCALE, TensorBase
from ...internals.hooks.calls import Called, Calling, CallWatch
from ...internals.hooks.captures import CaptureWatch
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.engine import EngineWatch
from ...internals.hooks.modules import ModuleBegan, ModuleWatch
from ...internals.hooks.optimizers import (
    BatchWatch,
    Stepped,
    Stepping,
    StepWatch,
    optimized_parameters,
)
from ...internals.hooks.regions import RegionWatch
from ...internals.tensors.memory import storage_id
from ...internals.tensors.pytree import tensors
from ..compiled_trace import OperationTrace
from ..program.in_place import IN_PLACE

_grad: Any = Tensor.grad
_data: Any = Tensor.data
_BACKWARDS = frozenset((Tensor.backward, torch.autograd.backward, torch.autograd.grad))
_CHANGES = IN_PLACE - {UNSCALE, UPDATE_SCALE}
# Functions that only read a parameter's values, without creating a node.
_VALUES = frozenset(
    (TensorBase.detach, TensorBase.item, TensorBase.tolist, TensorBase.numpy, _data.__get__)
)
_MAX_BACKWARDS = 8  # number of backwards after which a step without any update ends


class StepEnds:
    """An observer that calls a function at the end of each training step in this thread.

    After an optimizer has stepped, the training step ends at the next batch, forward or
    `zero_grad`. The last step ends at `close()`. Without an optimizer, a step ends where the
    program changes a parameter by hand after a backward, or else at each backward.

    Args:
        ended: called without arguments at the end of each training step. Its exceptions propagate
            into the program.
        stepped: called with each optimizer that stepped, or with None if a GradScaler skipped the
            step. It returns True if `ended` has to be called exactly where the next step begins,
            and False if `ended` may be called later, at the next optimizer step. If `stepped` is
            None, `ended` is always called exactly where the next step begins.

    >>> weight, losses = torch.ones(2, requires_grad=True), []
    >>> optimizer = torch.optim.SGD([weight], lr=0.25)
    >>> with StepEnds(lambda: losses.append(loss.item())):
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = weight.square().sum()
    ...         loss.backward()
    ...         optimizer.step()
    >>> losses
    [2.0, 0.5, 0.125]
    """

    functions = _CHANGES | _BACKWARDS | {_grad.__get__, _grad.__set__, _data.__set__}
    functions |= {UNSCALE, UPDATE_SCALE}

    def __init__(
        self,
        ended: Callable[[], object],
        stepped: Callable[[Optimizer | None], bool] | None = None,
    ) -> None:
        self._ended = ended
        self.other_threads = Counter[str]()  # number of backwards in other threads, by thread name
        self._engine = EngineWatch(lambda _: None, lambda _: None, self._note_thread)
        self._told = stepped
        self._thread = 0
        self._key = object()
        self._steps = StepWatch(self._on_step_start, self._on_step_end)
        self._captures = CaptureWatch(on_begin=self._before_capture)
        self._calls: _StepCallObserver | None = None  # set while calls are observed
        self._optimizers: set[int] = set()  # id() of optimizers that stepped before this tail
        self._number = 0  # sequence number when the last of `_optimizers` stepped
        self._tail: _Tail | None = None  # set if the exact end of this tail has to be found
        self._over: _Tail | None = None  # a tail that ended inside a call and is not closed yet
        self._running = False  # True during an optimizer step
        self._scales = False  # True if the program uses a GradScaler
        self._most = float(_MAX_BACKWARDS)  # without updates, a step ends after this many backwards
        self._backwards = 0  # number of backwards since the last step ended
        self._read: set[int] = set()  # storage ids of leaves whose gradient the program read

    def open(self) -> None:
        """Start observing this thread."""
        self._thread = get_ident()
        enter_program(self._key)
        self._steps.open()
        self._captures.open()
        self._engine.open()
        self._calls = _StepCallObserver(self, self._key)

    def close(self) -> None:
        """Stop observing. If an optimizer has stepped, its training step ends here."""
        self._steps.close()
        self._captures.close()
        tail = self._leave_tail()
        self._forget_tail()
        self.rest(last=True)
        leave_program(self._key)
        if tail:
            self._end()

    def rest(self, *, last: bool = False) -> None:
        """Stop observing calls until an optimizer has stepped.

        Args:
            last: True to stop counting backwards in other threads as well.
        """
        if last:
            self._engine.close()
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _note_thread(self) -> None:
        self.other_threads[current_thread().name] += 1

    def __enter__(self) -> StepEnds:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_call_end(self, event: Called) -> None:
        """End the step if a call into torch updates a parameter by hand or clears gradients."""
        ends = False
        with ignore_exceptions():  # a tensor cannot be read
            ends = not (self._running or self._optimizers) and self._is_end(event)
        if ends:
            self._end()

    def _is_end(self, event: Called) -> bool:
        func, args = event.func, event.args
        if func is torch.autograd.grad:
            inputs = args[1] if len(args) > 1 else (event.kwargs or {}).get("inputs")
            self._take(tensors(inputs))
        elif func in _BACKWARDS:
            self._backwards += 1
            if self._backwards < self._most or optimized_parameters():
                return False
            self._most = 1
            return True
        elif func is UNSCALE:
            self._scales = True
        elif not self._backwards and not self._read:
            return False
        elif func is UPDATE_SCALE:  # no optimizer stepped before, so the GradScaler skipped a step
            self._begin_tail(None)
        elif func == _grad.__get__:
            if code_owner(event.frame.f_code.co_filename) != OTHER:
                self._take(args[:1])
        elif func == _grad.__set__:
            return args[1] is None and self._backwards > 0 and not optimized_parameters()
        elif any(storage_id(each) in self._read for each in tensors(args[0])):
            self._read.clear()
            # In a program with an optimizer, a change by hand does not end a step. An adversarial
            # attack, for example, changes inputs by hand.
            if not optimized_parameters():
                self._most = math.inf
                return True
        return False

    def _take(self, parameters: Iterable[Tensor]) -> None:
        """Record that the program reads gradients: it may update these parameters by hand."""
        self._read.update(storage_id(each) for each in parameters if each.is_leaf)

    def _on_step_start(self, event: Stepping) -> None:
        if get_ident() == self._thread:
            known = self._optimizers
            if known and (id(event.optimizer) in known or sequence_number() != self._number):
                self._end()  # the beginning of this training step was not observed
            if self._over is not None:
                self._forget_tail()
            self._running = True
            if self._calls is not None and not self._scales:
                self.rest()

    def _on_step_end(self, event: Stepped) -> None:
        if get_ident() == self._thread:
            self._running = False
            self._begin_tail(event.optimizer)

    def _before_capture(self) -> None:
        """End the training step before a CUDA graph capture, in which no result can be read."""
        if self._optimizers:
            self._end()

    def _begin_tail(self, optimizer: Optimizer | None) -> None:
        matters = self._told is None or self._told(optimizer)
        self._optimizers.add(id(optimizer))
        self._number = sequence_number()
        if self._tail is not None:
            self._tail.on_optimizer_step()
        elif matters:
            self._tail = _Tail(self._on_next_step, self._key)

    def _on_next_step(self) -> None:
        """End the training step, because a call of the next training step begins."""
        if get_ident() == self._thread and self._tail is not None and not self._running:
            self._end()

    def _leave_tail(self) -> bool:
        """Stop searching for the next step's begin; return True if an optimizer has stepped."""
        found = bool(self._optimizers)
        self._optimizers.clear()
        tail, self._tail = self._tail, None
        if tail is not None and not tail.close():
            self._over = tail
        return found

    def _forget_tail(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over.close()

    def _end(self) -> None:
        self._leave_tail()
        self._backwards = 0
        self._read.clear()
        self._ended()


class _StepCallObserver:
    """An observer of a thread's calls into torch, from its creation until `close()`."""

    def __init__(self, listener: object, key: object) -> None:
        self._regions = RegionWatch(OperationTrace)
        self._calls = CallWatch((listener,), key, _raise)
        self._regions.__enter__()
        self._calls.__enter__()

    def close(self) -> None:
        """Stop observing the calls of the thread."""
        self._calls.__exit__(None, None, None)
        self._regions.__exit__(None, None, None)


class _All:
    """A set of functions that contains every function."""

    def __contains__(self, func: object) -> bool:
        return True


class _Tail:
    """An observer that finds where the next training step begins after an optimizer has stepped.

    Args:
        begins: called where the next training step begins, possibly more than once.
        key: key of the program whose calls are observed.
    """

    functions = before = _All()

    def __init__(self, begins: Callable[[], None], key: object) -> None:
        self._on_next_step = begins
        self._cleared = False  # True if the program cleared gradients in this tail
        self._calling = False  # True inside an observed call
        self._modules = ModuleWatch(self._on_module_start, lambda event: None, first=True)
        self._batches = BatchWatch(on_request=begins)
        self._modules.open()
        self._batches.open()
        self._observer = _StepCallObserver(self, key)

    def on_optimizer_step(self) -> None:
        """Ignore earlier calls of `zero_grad`, because another optimizer has stepped since."""
        self._cleared = False

    def close(self) -> bool:
        """Stop observing, and return True if that succeeded.

        Inside an observed call, a function mode cannot be exited. The result is then False, and the
        caller has to close the tail again later.
        """
        self._batches.close()
        self._modules.close()
        if self._calling:
            return False
        self._observer.close()
        return True

    def _on_module_start(self, event: ModuleBegan) -> None:
        if next(iter(event.module.parameters()), None) is not None:
            self._on_next_step()

    def on_call_start(self, event: Calling) -> None:
        """Check whether the next step begins with this call into torch."""
        func, clears = event.func, False
        if func == _grad.__get__:
            clears = event.frame.f_code.co_name == "zero_grad"
        elif func == _grad.__set__:
            clears = event.args[1] is None
        elif (
            func in _BACKWARDS
            or (self._cleared and func not in METADATA_CALLS and tensors(event.args))
            or _is_forward(func, event.args)
        ):
            self._calling = True
            try:
                self._on_next_step()
            finally:
                self._calling = False
        self._cleared = self._cleared or clears


def _is_forward(func: Any, args: tuple[Any, ...]) -> bool:
    """Return True if a call computes a differentiable result from a parameter."""
    if not torch.is_grad_enabled() or func in METADATA_CALLS or func in _VALUES:
        return False
    return any(tensor.requires_grad and tensor.is_leaf for tensor in tensors(args))


def _raise(error: Exception) -> NoReturn:
    raise error
