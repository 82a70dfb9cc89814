"""Record in-place changes and their lines, to explain why a backward failed.

Two kinds of changes are recorded: optimizer steps, and calls into torch that raise the version of
an argument, such as `add_`, `x[i] = 1`, `relu(inplace=True)`, calls with `out=`, and an embedding
with `max_norm`. Changes by other threads and by scripted or compiled code are not observed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, Calling, Raised
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import tensors
from ...internals.tensors.references import Ref
from .tracking import public_name

_MAX_CHANGES = 10_000  # number of latest changes that are kept
_MAX_STEPS = 100  # number of latest optimizer steps that are kept
_OPTIONS = frozenset(("inplace", "out", "max_norm"))  # keywords of calls that change a tensor


class InPlaceChange(NamedTuple):
    """A call that raised the version of a tensor."""

    operation: str  # "add_", "setitem", "relu(inplace=)", "step" of an optimizer
    place: CodePosition | None
    before: int  # version before the call
    after: int
    number: int = -1  # sequence number of the node that the call created; -1 if there is none
    storage: int = 0  # storage id of the tensor
    memory: Any = None  # weak reference to the storage, so that the storage id is not reused
    tensor: Ref | None = None
    shape: tuple[int, ...] = ()
    view: bool = False  # True if the tensor is a view


Versions = list[tuple[Tensor, int]]  # tensors that a call may change, with their versions


class _StepVersions(NamedTuple):
    """The version counters of an optimizer's parameters before and after a step."""

    optimizer: weakref.ref[Optimizer]
    place: CodePosition | None
    before: list[int]
    after: list[int]


class OptimizerFrames(Protocol):
    """Interface of the record of optimizer steps, as far as `Changes` uses it."""

    def is_own_call(self, frame: FrameType | None) -> bool:
        """Return True if `frame` runs code of an optimizer's step, but not the step's closure."""

    def step_by_hand(self) -> None:
        """Count an update of a parameter that the program made without an optimizer."""


class Changes:
    """The latest in-place changes of a recording.

    Args:
        place: returns the innermost position in the user's code, from a frame outwards.
        steps: notified when the program updates a parameter without an optimizer.
    """

    def __init__(
        self, place: Callable[[FrameType | None], CodePosition | None], steps: OptimizerFrames
    ) -> None:
        self.functions = IN_PLACE | _OPTIONS
        self._place = place
        self._program_steps = steps
        self._changes: deque[InPlaceChange] = deque(maxlen=_MAX_CHANGES)
        self._steps: deque[_StepVersions] = deque(maxlen=_MAX_STEPS)
        self._before: Versions = []  # tensors that the running call may change
        # id() and storage id of each leaf whose gradient the program read since the last backward
        self.read: set[int] = set()

    def on_call_start(self, event: Calling) -> None:
        """Record the version counters of the tensors that a call may change in place."""
        func, kwargs = event.func, event.kwargs
        if self._program_steps.is_own_call(event.frame):
            return
        module = str(event.frame.f_globals.get("__name__"))
        if module.startswith("torch.optim.") and module != "torch.optim.swa_utils":
            return  # all changes by an optimizer are recorded as one step
        for tensor in tensors(_in_place_argument(func, event.args, kwargs or {})):
            with suppress(RuntimeError):  # an inference tensor has no version
                self._before.append((tensor, tensor._version))

    def on_call_end(self, event: Called) -> None:
        """Record the tensors that a call changed in place."""
        if self._before:
            before, self._before = self._before, []
            self._look(before, event)

    def on_call_error(self, event: Raised) -> None:
        """Forget the tensors that a call might have changed, because the call raised."""
        self._before = []

    def _look(self, versions: Versions, event: Called) -> None:
        given = (k for k, v in (event.kwargs or {}).items() if k in _OPTIONS and v is not None)
        name = public_name(event.func) + next((f"({option}=)" for option in given), "")
        number = event.end - 1 if event.end > event.start else -1
        place = None
        for tensor, before in versions:
            if tensor._version > before:
                place = place or self._place(event.frame)
                with suppress(RuntimeError, NotImplementedError):  # tensors without memory
                    memory = storage_ref(tensor)
                    storage = storage_id(tensor)
                    if storage in self.read:
                        self._program_steps.step_by_hand()
                    row = name, place, before, tensor._version, number, storage
                    more = Ref(tensor), tensor.shape, tensor._base is not None
                    self._changes.append(InPlaceChange(*row, memory, *more))

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Record the version counters of the parameters before an optimizer step."""
        optimizer, place = event.optimizer, self._place(event.frame)
        self._steps.append(_StepVersions(weakref.ref(optimizer), place, _versions(optimizer), []))

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Record the version counters of the parameters after an optimizer step."""
        for step in reversed(self._steps):
            if step.optimizer() is event.optimizer:
                step.after.extend(_versions(event.optimizer))
                break

    def on_grad_read(self, leaf: Tensor) -> None:
        """Record that the program read the gradient of a leaf."""
        self.read |= {id(leaf), storage_id(leaf)}

    def on_data_assignment(self, leaf: Tensor) -> None:
        """Record that the program assigned to `leaf.data`."""
        if id(leaf) in self.read:
            self._program_steps.step_by_hand()

    def on_backward_start(self, event: object) -> None:
        """Forget the gradients that were read before this backward."""
        self.read.clear()

    def changes_since(self, tensor: Tensor, version: int) -> list[InPlaceChange]:
        """Return the in-place changes of a tensor since its counter was `version`, oldest first.

        The list is empty if any of these changes is not known with certainty.
        """
        known = [*self._calls_on(tensor), *self._steps_on(tensor)]
        found: list[InPlaceChange] = []
        now = tensor._version
        while now > version:
            # Nested changes, such as a call inside a step, count as one change: the outermost one,
            # which has the widest range of versions.
            ending = sorted((c for c in known if c.after == now), key=lambda change: change.before)
            widest = [change for change in ending if change.before == ending[0].before]
            # For an optimizer step, the changed parameter is certain. Calls are only matched by
            # memory, so the step is preferred.
            widest = [change for change in widest if change.operation == "step"] or widest
            if len({change.place for change in widest}) != 1:
                return []
            found.append(widest[0])
            now = widest[0].before
        return found[::-1]

    def when_first_run(self, shape: tuple[int, ...], version: int, now: int) -> list[InPlaceChange]:
        """Return the in-place changes of a tensor in the first forward of a checkpointed segment.

        They explain an error in the repeated forward inside backward, where calls are not observed.
        The list is empty if the changes are uncertain.

        Args:
            shape: shape of the tensor.
            version: the tensor's version before the changes.
            now: the tensor's version after the changes.
        """
        found: list[InPlaceChange] = []
        while version < now:
            same = [
                c for c in self._changes if (c.before, c.shape, c.number) == (version, shape, -1)
            ]
            if len({change.place for change in same}) != 1 or same[0].after > now:
                return []
            found.append(same[0])
            version = same[0].after
        return found

    def last_write(self, tensor: Tensor) -> InPlaceChange | None:
        """Return the last call that wrote into a tensor's memory; None if there is none.

        Calls that wrote through `.data` are included, but writes by optimizers are not.
        """
        with suppress(RuntimeError, NotImplementedError):  # tensors without memory
            storage = storage_id(tensor)
            return next((c for c in reversed(self._changes) if c.storage == storage), None)
        return None

    def _calls_on(self, tensor: Tensor) -> list[InPlaceChange]:
        storage = storage_id(tensor)
        found = []
        for change in self._changes:
            if change.storage == storage:
                changed = None if change.tensor is None else change.tensor()
                # A change of `x.data` is left out: `x.data` shares the memory of `x`, but not its
                # version counter.
                if changed is None or changed._version == tensor._version:
                    found.append(change)
        return found

    def _steps_on(self, tensor: Tensor) -> list[InPlaceChange]:
        found = []
        for step in self._steps:
            optimizer = step.optimizer()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            if len(parameters) == len(step.before) == len(step.after):
                rows = zip(parameters, step.before, step.after, strict=True)
                found += [
                    InPlaceChange("step", step.place, before, after)
                    for parameter, before, after in rows
                    if after > before and same_memory(parameter, tensor)
                ]
        return found


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return True if two dense tensors share all elements, as a weight and its transpose do.

    Args:
        one: the first tensor.
        other: the second tensor.
    """
    dense = one.layout is torch.strided and other.layout is torch.strided
    if not dense or storage_id(one) != storage_id(other):
        return False
    return TensorBase.numel(one) == TensorBase.numel(other) and TensorBase.storage_offset(
        one
    ) == TensorBase.storage_offset(other)


def _versions(optimizer: Optimizer) -> list[int]:
    with unseen_calls(), suppress(RuntimeError):
        return [parameter._version for parameter in parameters_of(optimizer)]
    return []


def _in_place_argument(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the argument that a call may change in place; None if there is none."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    if kwargs.get("max_norm") is not None:  # an embedding renormalizes its weight
        return args[1] if len(args) > 1 else kwargs.get("weight")
    if func in IN_PLACE or kwargs.get("inplace"):
        return args[0] if args else next(iter(kwargs.values()), None)
    return None


def _in_place() -> frozenset[Any]:
    found = []
    for space in (Tensor, Tensor.__base__, torch, torch.nn.functional, torch.nn.init):
        for name, value in vars(space).items():
            own = name.endswith("_") and not name.endswith("__")
            if callable(value) and name not in _KEEP and (own or name in _OPERATORS):
                found.append(value)
    return frozenset(found)


_KEEP = {"requires_grad_", "detach_", "share_memory_"}  # in-place methods that change no values
_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod")}
_OPERATORS |= {f"__i{name}__" for name in ("pow", "and", "or", "xor", "lshift", "rshift")}
_OPERATORS.add("__setitem__")

# Functions that change their first argument.
IN_PLACE = _in_place()
