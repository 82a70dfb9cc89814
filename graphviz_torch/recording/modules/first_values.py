"""Find parameters whose values from a checkpoint, or from a copy, are lost before training.

A loaded state whose keys differ from the module's names is ignored with `strict=False`. Values that
the program wrote into a parameter are lost if the parameter is initialized again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module, Parameter

from ...findings.rules.written_values import IgnoredKeys, ReinitializedWeights
from ...internals.frames import CodePosition, local_variables, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, Calling
from ...internals.hooks.optimizers import Stepping
from ...internals.hooks.weights import (
    OVERRIDABLE,
    InitializationWatch,
    Initializing,
    LoadStateWatch,
    StateLoaded,
)
from ...internals.probes import unobserved
from ...internals.tensors.memory import may_be_read
from ...internals.tensors.references import Ref
from ..listener import Listener, Watches
from ..program import Program

_MAX_PARAMETERS = 10_000
_MAX_ROWS = 1 << 16  # number of elements of a parameter whose rows are read
_DRAWS = {TensorBase.normal_, TensorBase.uniform_, Tensor.normal_, Tensor.uniform_}


class FirstValues(Listener):
    """Listener that reports keys that `load_state_dict` ignored, and lost first values."""

    functions = frozenset((*OVERRIDABLE.values(), *_DRAWS))
    before = functions
    sees_later_steps = True
    watches: ClassVar[Watches] = {
        "on_state_loaded": LoadStateWatch,
        "on_initialize": InitializationWatch,
    }

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # id() of a parameter -> the parameter, and its version after its last initialization.
        self._versions: dict[int, tuple[Ref, int]] = {}
        # Parameters of the last load: id() -> parameter, version after the load.
        self._loaded: dict[int, tuple[Ref, int]] = {}
        # Names of the loaded parameters that were initialized again, by id() of the parameter.
        self._lost: dict[int, str] = {}
        self._place: CodePosition | None = None  # line of the first of these initializations

    def on_state_loaded(self, event: StateLoaded) -> None:
        self._loaded, self._lost = {}, {}
        for name, parameter in event.module.named_parameters():
            if name in event.state and parameter.dim() > 1:
                self._loaded[id(parameter)] = Ref(parameter), parameter._version
                self._remember(parameter)
        pairs = list(_renamed(event)) if event.missing and event.unexpected else []
        if pairs:
            found = IgnoredKeys(
                missing=tuple(missing for missing, _ in pairs),
                unexpected=tuple(key for _, key in pairs),
            )
            self.events.note(found, self.program.place(event.frame))

    def on_call_start(self, event: Calling) -> None:
        tensor = event.args[0] if event.args else (event.kwargs or {}).get("tensor")
        if type(tensor) is Parameter:
            self.on_initialize(Initializing(tensor, False, event.frame))

    def on_call_end(self, event: Called) -> None:
        tensor = event.args[0] if event.args else (event.kwargs or {}).get("tensor")
        if type(tensor) is Parameter:
            self._remember(tensor)

    def on_initialize(self, event: Initializing) -> None:
        """Check the values that an initialization is about to replace."""
        tensor, ended, frame = event
        if ended:
            self._remember(tensor)
            return
        version = tensor._version
        known, loaded = self._versions.get(id(tensor)), self._loaded.get(id(tensor))
        if loaded is not None and loaded[0]() is tensor and loaded[1] == version:
            self._place = self._place if self._lost else self.program.place(frame)
            self._lost.setdefault(id(tensor), _name(tensor, frame))
        elif known is not None and known[0]() is tensor and known[1] != version:
            trained = tensor.grad is not None or id(tensor) in self.program.steps.ever
            if tensor.dim() > 1 and not trained and not _has_padding(tensor):
                found = ReinitializedWeights(parameter=_name(tensor, frame))
                self.events.note(found, self.program.place(frame))

    def on_optimizer_step_start(self, event: Stepping) -> None:
        if len(self._lost) == len(self._loaded) > 1:
            found = ReinitializedWeights(
                parameter=next(iter(self._lost.values())), loaded=len(self._lost)
            )
            self.events.note(found, self._place)
        self._loaded, self._lost = {}, {}

    def _remember(self, parameter: Tensor) -> None:
        if len(self._versions) < _MAX_PARAMETERS or id(parameter) in self._versions:
            self._versions[id(parameter)] = Ref(parameter), parameter._version

    def close(self) -> None:
        self._versions, self._loaded, self._lost = {}, {}, {}


def _renamed(event: StateLoaded) -> Iterator[tuple[str, str]]:
    """Yield pairs of a missing name and an ignored key that differ only by added or left parts.

    For example, the key "module.fc.weight" belongs to the name "fc.weight", if both have one shape.
    """
    shapes = {name: value.shape for name, value in event.module.state_dict(keep_vars=True).items()}
    for name in event.missing:
        for key in event.unexpected:
            value: Any = event.state.get(key)
            if isinstance(value, Tensor) and value.shape == shapes.get(name):
                one, other = sorted((name.split("."), key.split(".")), key=len)
                if value.dim() and one[-1] == other[-1] and _is_subsequence(one, other):
                    yield name, key
                    break


def _is_subsequence(one: Sequence[str], other: Sequence[str]) -> bool:
    rest = iter(other)
    return len(one) > 1 and all(part in rest for part in one)


def _name(tensor: Tensor, frame: FrameType) -> str:
    """Return the name of a parameter by the variables of the user's frame, or its shape."""
    own = user_frame(frame)
    for name, value in local_variables(own).items() if own is not None else ():
        if value is tensor:
            return name
        if issubclass(type(value), Module):
            for key, parameter in value.named_parameters():
                if parameter is tensor:
                    return key if name == "self" else f"{name}.{key}"
    return f"a parameter {list(tensor.shape)}"


def _has_padding(tensor: Tensor) -> bool:
    """Return True if a row is zero, as that of the padding of an embedding, or cannot be read."""
    if not tensor.is_cpu or not may_be_read(tensor) or TensorBase.numel(tensor) > _MAX_ROWS:
        return True
    with unobserved():
        rows = TensorBase.detach(tensor).flatten(1)
        return bool((rows == 0).all(1).any())
