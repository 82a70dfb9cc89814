"""What a forward may change, put back: nothing of the program is another after a second run.

    random state        of PyTorch on every device, `random`, numpy
    modules             modes, attributes, and what is in their lists, dicts and sets, however deep
    gradients           which tensor each parameter has as `.grad`
    tensors             the values and version counters of those that were there before

What cannot be put back: what a forward prints, writes to files or sends, and what it changes in
objects that no module holds.

Private: `_unsafe_set_version_counter` (2.13).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..tensors.memory import storage_id, storage_ref
from .call import RandomState
from .shadows import has_storage

_set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class Prints:
    """Takes what a forward prints a second time."""

    def __init__(self) -> None:
        self.count = 0  # characters

    def write(self, text: str) -> int:
        """Drop it."""
        self.count += len(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""


class World:
    """The program beside one module: what stands before is there again after.

    Args:
        module: whose forward runs meanwhile.
    """

    def __init__(self, module: Module) -> None:
        self.prints = Prints()
        self._module = module
        self._made: dict[int, Any] = {}  # storages of the second run itself
        self._before: dict[int, tuple[Tensor, Tensor, int | None]] = {}  # by storage

    def own(self, tensor: Tensor) -> None:
        """A tensor belongs to the second run: it may be changed."""
        if has_storage(tensor):
            self._made[storage_id(tensor)] = storage_ref(tensor)

    def protect(self, tensor: Tensor) -> None:
        """A tensor is about to be changed: if it was there before, keep a copy."""
        key = storage_id(tensor)
        made = self._made.get(key)
        if key in self._before or (made is not None and not made.expired()):
            return
        with suppress(RuntimeError, NotImplementedError):
            self._before[key] = (tensor, _whole(tensor).clone(), _version(tensor))

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """A context after which all is as it was."""
        state, modules = RandomState.now(), list(self._module.modules())
        attributes = [(m, dict(m.__dict__), [*_insides(m.__dict__)]) for m in modules]
        gradients = [(p, p.grad) for p in self._module.parameters()]
        for buffer in self._module.buffers():
            self.protect(buffer)
        try:
            with warnings.catch_warnings(), redirect_stdout(self.prints):
                warnings.simplefilter("ignore")
                yield
        finally:
            self._restore()
            for module, before, insides in attributes:
                _put(module.__dict__, before)
                for value, inside in insides:
                    _refill(value, inside)
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            state.put()

    def _restore(self) -> None:
        for tensor, values, version in self._before.values():
            with torch.no_grad(), suppress(RuntimeError, NotImplementedError):
                whole = _whole(tensor)
                if not _same(whole, values):
                    whole.copy_(values)
                if version is not None and _version(tensor) != version:
                    _set_versions((tensor,), (version,))
        self._before.clear()


def _whole(tensor: Tensor) -> Tensor:
    """All that lies in the storage of a tensor, without its history."""
    if not has_storage(tensor):
        return tensor.detach()
    storage = tensor.untyped_storage()
    with torch.no_grad():
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return flat.set_(storage, 0, (storage.nbytes(),), (1,))


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a, b))


def _version(tensor: Tensor) -> int | None:
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode
        return None


def _insides(container: Any) -> Iterator[tuple[Any, Any]]:
    """The containers in one, and in these, each with a copy."""
    waiting, seen = [container], {id(container)}
    while waiting:
        inside = waiting.pop()
        for value in inside.values() if isinstance(inside, dict) else inside:
            if isinstance(value, (list, dict, set, deque)) and id(value) not in seen:
                seen.add(id(value))
                yield value, value.copy()
                waiting.append(value)


def _put(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _refill(value: Any, before: Any) -> None:
    """Let a container have what was in it."""
    if isinstance(value, dict):
        if list(value) != list(before) or any(value[k] is not before[k] for k in before):
            value.clear()
            value.update(before)
    elif isinstance(value, set):
        if value != before:
            value.clear()
            value.update(before)
    elif len(value) != len(before) or any(a is not b for a, b in zip(value, before, strict=True)):
        value.clear()
        value.extend(before)
