"""How a module was called: what a second run of its forward needs to be the same one.

Kept are copies of its tensors among the arguments and of its buffers, the random state, autocast,
and the default dtype. Its parameters are not copied: a second run takes those of then.

Private: `torch._C._functorch` tells what torch.func wraps; `torch.random`,
`torch.cuda` and `torch.get_autocast_dtype` (2.13).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..functions import TensorBase
from ..hooks.modes import unseen_calls
from ..tensors.memory import has_memory, is_dense, parts
from ..tensors.pytree import map_tensors, tensors
from .contents import Contents

_functorch: Any = torch._C._functorch


def _values(tensor: Tensor) -> Tensor:
    return torch.clone(TensorBase.detach(tensor))


def _copy(tensor: Tensor) -> Tensor:
    copy = _values(tensor)
    return TensorBase.requires_grad_(copy) if tensor.requires_grad else copy


def without_values(tensor: Tensor) -> bool:
    """May nothing read it: is it on the meta device, fake, inside vmap, or is its memory freed."""
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return True
    if any(each.__name__ == "FakeTensor" for each in type(tensor).__mro__):
        return True
    return any(is_dense(part) and not has_memory(part) for part in parts(tensor))


def copied(nesting: Any) -> Any:
    """The same nesting with copies of its tensors, a tensor that comes twice copied once."""
    known: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = _copy(tensor)
        return known[id(tensor)]

    return map_tensors(once, nesting)


def _of_numpy() -> Any:
    return sys.modules["numpy"].random.get_state() if "numpy.random" in sys.modules else None


class PythonDraws:
    """Tells whether `random` or numpy have drawn numbers since."""

    def __init__(self) -> None:
        self._before = random.getstate(), _of_numpy()

    def __bool__(self) -> bool:
        of_python, before = self._before
        now = _of_numpy()
        if before is None or now is None:
            return random.getstate() != of_python
        differ = now[2:] != before[2:] or bool((now[1] != before[1]).any())
        return differ or random.getstate() != of_python


@dataclass(frozen=True)
class RandomState:
    """The random state of PyTorch on every device, of `random`, and of numpy where it is there."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    of_python: Any
    of_numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """That of this moment."""
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(
            torch.get_rng_state(),
            tuple(torch.cuda.get_rng_state_all()) if started else (),
            random.getstate(),
            _of_numpy(),
        )

    def put(self) -> None:
        """Let it be that again."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        random.setstate(self.of_python)
        if self.of_numpy is not None:
            sys.modules["numpy"].random.set_state(self.of_numpy)


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    module: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: RandomState
    buffers: dict[str, Tensor]  # copies, by name
    autocast: dict[str, tuple[bool, torch.dtype]]  # by device type
    dtype: torch.dtype  # the default one
    contents: Contents  # of objects among its arguments
    generators: tuple[Callable[[], object], ...]  # put the states of those that modules hold
    start: int = -1  # number of the thread's next node when it began

    @classmethod
    def of(
        cls, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], start: int = -1
    ) -> Call:
        """The call of `module` that begins now."""
        with unseen_calls(), torch.no_grad():
            devices = {"cpu"} | {t.device.type for t in tensors(args, kwargs)}
            known = [device for device in devices if device not in ("meta",)]
            return cls(
                module,
                copied(tuple(args)),
                copied(dict(kwargs)),
                RandomState.now(),
                {name: _values(buffer) for name, buffer in module.named_buffers()},
                {
                    device: (
                        torch.is_autocast_enabled(device),
                        torch.get_autocast_dtype(device),
                    )
                    for device in known
                },
                torch.get_default_dtype(),
                Contents(args, kwargs),
                tuple(Contents(*module.modules()).generators),
                start,
            )

    def unreadable(self) -> str:
        """The name of a parameter or buffer of the module that nothing may read; "" for none."""
        with unseen_calls():
            named = [*self.module.named_parameters(), *self.module.named_buffers()]
            return next((name for name, tensor in named if without_values(tensor)), "")

    def put(self) -> None:
        """Let buffers, arguments and random generators be as they were when it was called."""
        self.put_buffers()
        self.contents.put()
        for put_state in self.generators:
            put_state()
        self.state.put()

    def put_buffers(self) -> None:
        """Let the buffers have the values that they had when the module was called."""
        for name, buffer in self.module.named_buffers():
            value = self.buffers.get(name)
            alike = value is not None and value.shape == buffer.shape
            if value is not None and alike and value.dtype is buffer.dtype:
                if torch.equal(value, buffer):
                    continue
                buffer.data.copy_(value)

    @contextmanager
    def context(self, *, eager: bool = True) -> Iterator[None]:
        """Autocast and default dtype as they were; what was compiled runs eagerly."""
        dtype = torch.get_default_dtype()
        before = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in self.autocast
        }
        try:
            _cast(self.autocast)
            torch.set_default_dtype(self.dtype)
            # A program that has compiled nothing has not loaded the compiler, which takes seconds.
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
