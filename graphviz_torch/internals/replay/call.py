"""Record how a module was called, so that its forward can be run again with the same result.

A `ModuleCall` contains copies of the argument tensors and of the module's buffers, and the random
state, the autocast settings and the default dtype at the time of the call. Parameters are not
copied, so a second run uses their values at the time of the second run.

Uses private API (2.13): `torch._C._functorch`, and parts of `torch.random`, `torch.cuda` and
`torch.get_autocast_dtype`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...graph.immutable import immutable
from ..functions import TensorBase
from ..hooks.modes import unseen_calls
from ..tensors.memory import has_memory, is_dense, parts
from ..tensors.pytree import map_tensors, tensors
from .snapshot import Snapshot

_functorch: Any = torch._C._functorch


def _values(tensor: Tensor) -> Tensor:
    return torch.clone(TensorBase.detach(tensor))


def _copy(tensor: Tensor) -> Tensor:
    copy = _values(tensor)
    return TensorBase.requires_grad_(copy) if tensor.requires_grad else copy


def has_no_values(tensor: Tensor) -> bool:
    """Return True if the tensor cannot be read: meta, fake, inside vmap, or with freed memory."""
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return True
    if any(each.__name__ == "FakeTensor" for each in type(tensor).__mro__):
        return True
    return any(is_dense(part) and not has_memory(part) for part in parts(tensor))


def copy_nested(nesting: Any) -> Any:
    """Return a copy of nested containers, in which a tensor that occurs twice is copied once."""
    known: dict[int, Tensor] = {}

    def copy_once(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = _copy(tensor)
        return known[id(tensor)]

    return map_tensors(copy_once, nesting)


def _numpy_state() -> Any:
    return sys.modules["numpy"].random.get_state() if "numpy.random" in sys.modules else None


class PythonDraws:
    """An object that becomes true once `random` or numpy draws numbers after its creation."""

    def __init__(self) -> None:
        self._before = random.getstate(), _numpy_state()

    def __bool__(self) -> bool:
        of_python, before = self._before
        now = _numpy_state()
        if before is None or now is None:
            return random.getstate() != of_python
        differ = now[2:] != before[2:] or bool((now[1] != before[1]).any())
        return differ or random.getstate() != of_python


@immutable(slots=False)
class RandomState:
    """The random state of PyTorch on every device, of `random`, and of numpy if it is imported."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    of_python: Any
    of_numpy: Any

    @classmethod
    def current(cls) -> RandomState:
        """Return the current state of the random generators."""
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(
            torch.get_rng_state(),
            tuple(torch.cuda.get_rng_state_all()) if started else (),
            random.getstate(),
            _numpy_state(),
        )

    def restore(self) -> None:
        """Set the random generators back to this state."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        random.setstate(self.of_python)
        if self.of_numpy is not None:
            sys.modules["numpy"].random.set_state(self.of_numpy)


@immutable(slots=False)
class ModuleCall:
    """One call of a module."""

    module: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: RandomState
    buffers: dict[str, Tensor]  # copies of the buffers by name
    autocast: dict[str, tuple[bool, torch.dtype]]  # (enabled, dtype) by device type
    dtype: torch.dtype  # the default dtype
    contents: Snapshot  # state of objects among the arguments
    # Functions, each of which restores a random generator that is an attribute of a module.
    generators: tuple[Callable[[], object], ...]
    start: int = -1  # sequence number of the thread's next node at the start of the call

    @classmethod
    def record(
        cls, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], start: int = -1
    ) -> ModuleCall:
        """Record the call of `module` that is about to start."""
        with unseen_calls(), torch.no_grad():
            devices = {"cpu"} | {t.device.type for t in tensors(args, kwargs)}
            known = [device for device in devices if device not in ("meta",)]
            return cls(
                module,
                copy_nested(tuple(args)),
                copy_nested(dict(kwargs)),
                RandomState.current(),
                {name: _values(buffer) for name, buffer in module.named_buffers()},
                {
                    device: (
                        torch.is_autocast_enabled(device),
                        torch.get_autocast_dtype(device),
                    )
                    for device in known
                },
                torch.get_default_dtype(),
                Snapshot(args, kwargs),
                tuple(Snapshot(*module.modules()).generators),
                start,
            )

    def unreadable(self) -> str:
        """Return the name of a parameter or buffer that cannot be read, or "" if there is none."""
        with unseen_calls():
            named = [*self.module.named_parameters(), *self.module.named_buffers()]
            return next((name for name, tensor in named if has_no_values(tensor)), "")

    def restore(self) -> None:
        """Restore buffers, arguments and random generators to their state at the call."""
        self.restore_buffers()
        self.contents.restore()
        for put_state in self.generators:
            put_state()
        self.state.restore()

    def restore_buffers(self) -> None:
        """Restore the buffers to their values at the time of the call."""
        for name, buffer in self.module.named_buffers():
            value = self.buffers.get(name)
            alike = value is not None and value.shape == buffer.shape
            if value is not None and alike and value.dtype is buffer.dtype:
                if torch.equal(value, buffer):
                    continue
                buffer.data.copy_(value)

    @contextmanager
    def context(self, *, eager: bool = True) -> Iterator[None]:
        """Return a context manager that sets the call's autocast state and default dtype.

        Args:
            eager: True to run compiled functions eagerly.
        """
        dtype = torch.get_default_dtype()
        before = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in self.autocast
        }
        try:
            _cast(self.autocast)
            torch.set_default_dtype(self.dtype)
            # If Dynamo is not loaded, the program has compiled nothing, and loading Dynamo would
            # take seconds.
            with _eagerly() if eager and "torch._dynamo" in sys.modules else nullcontext():
                yield
        finally:
            torch.set_default_dtype(dtype)
            torch.clear_autocast_cache()
            _cast(before)


def _eagerly() -> Any:
    return torch.compiler.set_stance("force_eager")


def _cast(autocast: dict[str, tuple[bool, torch.dtype]]) -> None:
    for device, (enabled, dtype) in autocast.items():
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_enabled(device, enabled)
