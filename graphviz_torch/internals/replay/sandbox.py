"""Restore the state of the user's program, and random generators, after a forward was run again.

    random state        of PyTorch on every device, `random`, numpy, and generators of modules
    modules, arguments  training modes, attributes, and content of containers and objects
    gradients           the tensor that each parameter has as `.grad`
    tensors             values and version counters of tensors that existed before
    prints, files       prints are dropped, and writes to files are refused

Messages that were sent, and changes of objects that neither a module nor an argument refers to,
cannot be undone.

Uses the private `_unsafe_set_version_counter` (2.13).
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
from .shadows import has_storage
from .side_effects import SideEffectError, SideEffects
from .snapshot import Snapshot

_set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class Sandbox:
    """The state of the program that a second run may change and that is restored afterwards.

    Args:
        module: the module whose forward is run.
        given: arguments of the forward.
    """

    def __init__(self, module: Module, *given: Any) -> None:
        self.refused: SideEffectError | None = None  # the side effect that stopped the forward
        self._module, self._given = module, given
        self._made: dict[int, Any] = {}  # storages created by the second run
        # `storage_id` -> (tensor, copy of its storage, version counter)
        self._before: dict[int, tuple[Tensor, Tensor, int | None]] = {}

    def mark_created(self, tensor: Tensor) -> None:
        """Mark a tensor as created by the second run, so that `protect` does not copy it."""
        if has_storage(tensor):
            self._made[storage_id(tensor)] = storage_ref(tensor)

    def protect(self, tensor: Tensor) -> None:
        """Keep a copy of a tensor that is about to be mutated, unless the second run created it."""
        key = storage_id(tensor)
        made = self._made.get(key)
        if key in self._before or (made is not None and not made.expired()):
            return
        with suppress(RuntimeError, NotImplementedError):
            self._before[key] = (tensor, _whole_storage(tensor).clone(), _version(tensor))

    @contextmanager
    def restore_on_exit(self) -> Iterator[None]:
        """Restore all state at the end of this context."""
        state, contents = RandomState.current(), Snapshot(*self._module.modules(), *self._given)
        effects = SideEffects(contents)
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
            contents.restore()
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            state.restore()

    def _restore(self) -> None:
        for tensor, values, version in self._before.values():
            with torch.no_grad(), suppress(RuntimeError, NotImplementedError):
                whole = _whole_storage(tensor)
                if not _equal(whole, values):
                    whole.copy_(values)
                if version is not None and _version(tensor) != version:
                    _set_versions((tensor,), (version,))
        self._before.clear()


def _whole_storage(tensor: Tensor) -> Tensor:
    """Return the whole storage of a tensor as a detached tensor of bytes."""
    if not has_storage(tensor):
        return tensor.detach()
    storage = tensor.untyped_storage()
    with torch.no_grad():
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return flat.set_(storage, 0, (storage.nbytes(),), (1,))


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a, b))


def _version(tensor: Tensor) -> int | None:
    try:
        return tensor._version
    except RuntimeError:  # raised for a tensor that was created in inference mode
        return None


class GeneratorStates:
    """The saved states of some random generators.

    Args:
        seed: if given, the states are those of new generators with this seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._states: list[tuple[torch.Generator, Tensor]] = []
        if seed is not None:
            for generator in _generators():
                other = torch.Generator(generator.device)
                other.manual_seed(seed)
                self._states.append((generator, other.get_state()))

    @classmethod
    def save(cls, args: Any, kwargs: Any, operands: list[Tensor]) -> GeneratorStates:
        """Save the states of the default generators, and of generators among the arguments.

        Args:
            args: arguments of an operator, which may contain generators.
            kwargs: its keyword arguments.
            operands: tensors among the arguments; they are not used.
        """
        found = cls()
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
        for generator in [*given, *_generators()]:
            found._states.append((generator, generator.get_state()))
        return found

    def current(self) -> GeneratorStates:
        """Return the states that the same generators have now."""
        found = GeneratorStates()
        found._states = [(g, g.get_state()) for g, _ in self._states]
        return found

    def have_changed(self) -> bool:
        """Return True if any of the generators has drawn numbers since its state was saved."""
        return any(not torch.equal(state, g.get_state()) for g, state in self._states)

    def restore(self) -> None:
        """Set each generator back to its saved state."""
        for generator, state in self._states:
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator, *(torch.cuda.default_generators if started else ())]
