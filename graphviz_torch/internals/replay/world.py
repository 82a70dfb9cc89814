"""What a forward may change, put back: nothing of the program is another after a second run.

    random state        of PyTorch on every device, `random`, numpy, and generators that are held
    modules, arguments  modes, attributes, and what is in their lists, dicts, sets and objects
    gradients           which tensor each parameter has as `.grad`
    tensors             the values and version counters of those that were there before
    prints, files       the first are dropped, the second refused

What cannot be put back: what a forward sends, and what it changes in objects that neither a module
nor an argument holds.

Private: `_unsafe_set_version_counter` (2.13).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..tensors.memory import storage_id, storage_ref
from .call import RandomState
from .contents import Contents
from .effects import Effects, Refused
from .shadows import has_storage

_set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class World:
    """The program beside one module: what stands before is there again after.

    Args:
        module: whose forward runs meanwhile.
        given: to it.
    """

    def __init__(self, module: Module, *given: Any) -> None:
        self.refused: Refused | None = None  # what the forward was about to do
        self._module, self._given = module, given
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
        state, contents = RandomState.now(), Contents(*self._module.modules(), *self._given)
        effects = Effects(contents)
        gradients = [(p, p.grad) for p in self._module.parameters()]
        for buffer in self._module.buffers():
            self.protect(buffer)
        try:
            with warnings.catch_warnings(), effects.context():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.refused = effects.refused
            self._restore()
            contents.put()
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
