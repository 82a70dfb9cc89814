"""Restore the state of the user's program after a forward was run again, and suppress side effects.

    random state        of PyTorch on every device, `random`, numpy, and generators of modules
    modules, arguments  training modes, attributes, and content of containers and objects
    gradients           the tensor that each parameter has as `.grad`
    tensors             values and version counters of tensors that existed before
    prints, log records dropped
    files               opening a file for writing, or writing to a file that a module has open,
                        raises `SideEffectError`: the run ends there and nothing is written

Prints and files are suppressed only in the thread of the run. Files that PyTorch itself writes,
such as the compiler's files, are allowed.

Messages that were sent, and changes of objects that neither a module nor an argument refers to,
cannot be undone.

Uses the private `_unsafe_set_version_counter` (2.13).
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..frames import OTHER, TORCH, code_owner
from ..tensors.memory import storage_id, storage_ref
from .call import RandomState
from .shadows import has_storage
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


class SideEffectError(Exception):
    """Exception that stops a forward before it does something that cannot be undone.

    Args:
        does: the side effect, such as "writes to the file log.txt".
    """

    def __init__(self, does: str) -> None:
        super().__init__(does)
        self.does = does


class _SilencedOutput:
    """A stream that drops the output of one thread."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        """Drop text that the thread writes; pass on text that other threads write."""
        if threading.get_ident() != self._thread and self._stream is not None:
            return int(self._stream.write(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class SideEffects:
    """A filter that suppresses or refuses the side effects of a forward that runs again.

    Args:
        contents: snapshot of the modules' state; open files in it are made read-only.
    """

    def __init__(self, contents: Snapshot) -> None:
        self.refused: SideEffectError | None = None
        self._contents = contents
        self._thread = threading.get_ident()

    @contextmanager
    def context(self) -> Iterator[None]:
        """Suppress or refuse side effects inside this context."""
        opens, handlers = builtins.open, logging.Logger.callHandlers
        thread = self._thread

        def open_file(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            writes = isinstance(mode, str) and not set("wax+").isdisjoint(mode)
            if writes and threading.get_ident() == thread and not _of_torch(sys._getframe(1)):
                self.refuse(f"opens the file {_name(file)} to write to it")
            return opens(file, mode, *args, **kwargs)

        def log(logger: Any, record: Any) -> None:
            if threading.get_ident() != thread:
                handlers(logger, record)

        out, err = _SilencedOutput(sys.stdout, thread), _SilencedOutput(sys.stderr, thread)
        files = list(self._contents.files())
        builtins.open = io.open = open_file
        logging.Logger.callHandlers = log  # type: ignore[assignment,method-assign]
        for container, key in files:  # restored later, together with the modules' other state
            container[key] = _ReadOnlyFile(self, container[key])
        try:
            with redirect_stdout(out), redirect_stderr(err):
                yield
        finally:
            builtins.open = io.open = opens
            logging.Logger.callHandlers = handlers  # type: ignore[method-assign]

    def refuse(self, does: str) -> None:
        """Stop the run by raising `SideEffectError`.

        Args:
            does: the side effect, such as "writes to the file log.txt".
        """
        self.refused = SideEffectError(does)
        raise self.refused


class _ReadOnlyFile:
    """A proxy of an open file that refuses to write."""

    def __init__(self, effects: SideEffects, file: Any) -> None:
        self._effects, self._file = effects, file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("write"):
            name = _name(getattr(self._file, "name", ""))
            self._effects.refuse(f"writes to the file {name}".rstrip())
        return getattr(self._file, name)


def _name(file: Any) -> str:
    return Path(file).name if isinstance(file, (str, Path)) else str(file)


def _of_torch(frame: FrameType | None) -> bool:
    """Return True if PyTorch is the innermost caller outside of the standard library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(TORCH):
            return True
        if code_owner(file) != OTHER:
            return False
        frame = frame.f_back
    return False
