"""Find averages of the weights that leave out the running statistics of batch norm.

A teacher or an averaged model is a copy whose parameters the program changes in place. If its
buffers keep their values while those of the trained model change, batch norm in the copy normalizes
with old statistics. Versions of tensors are compared, not values.

An average that only an evaluation calls is searched for among the variables around an optimizer's
step, at the steps 4, 8, 16 and so on. It is reported if its batch norm is in eval mode with the
first running statistics, although its parameters have changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, functional

from ...findings.rules.weight_averages import StaleAverage
from ...graph.immutable import mutable
from ...internals.frames import local_variables, user_frame, user_frames
from ...internals.functions import BATCH_NORM, TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.modules import ModuleBegan
from ...internals.hooks.optimizers import Stepping
from ...internals.probes import unobserved
from ...internals.tensors.memory import may_be_read
from ...internals.tensors.pytree import ATOMS, own_attributes
from ..listener import Listener
from ..program import Program

_MAX_MODULES = 64  # maximum number of modules whose versions are kept
_MIN_STEPS = 4  # number of the first step at which averages are searched for
_MIN_WRITES = 2  # a module counts as an average after this number of changes of a parameter


@mutable
class _NormModule:
    """An outermost module with batch norm, and version counters of tensors at its first call."""

    module: weakref.ref[Module]
    path: str
    norm: weakref.ref[Module]
    parameter_version: int
    buffer_version: int

    def writes(self) -> tuple[int, int]:
        """Return how often the first parameter and the norm layer's buffers were changed.

        Changes are counted from the module's first call.

        Both numbers are -1 if the module was freed.
        """
        module, norm = self.module(), self.norm()
        parameter = None if module is None else next(module.parameters(), None)
        if norm is None or parameter is None:
            return -1, -1
        return parameter._version - self.parameter_version, _version(norm) - self.buffer_version


def _version(norm: Any) -> int:
    """Return a number that grows when the buffers of a batch norm layer are changed.

    The kernel of batch norm changes the running mean without a new version, but the layer counts
    the batches.
    """
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    return sum(buffer._version for buffer in buffers if buffer is not None)


class AverageBuffers(Listener):
    """Listener that reports averaged models whose running statistics are not averaged."""

    functions = frozenset((functional.batch_norm,))
    sees_later_steps = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._known: dict[int, _NormModule] = {}  # by id() of the module
        self._running: weakref.ref[Module] | None = None  # the outermost module

    def on_outermost_start(self, event: ModuleBegan) -> None:
        self._running = weakref.ref(event.module)

    def on_call_end(self, event: Called) -> None:
        module = None if self._running is None else self._running()
        known = self._known.get(id(module))
        if module is None or (known is not None and known.module() is module):
            return
        first, norm = next(module.parameters(), None), self._running_norm()
        if first is None or norm is None or TensorBase.is_inference(first):
            return
        if len(self._known) < _MAX_MODULES:
            path = self.program.table.path(module) or ""
            row = weakref.ref(module), path, weakref.ref(norm), first._version, _version(norm)
            self._known[id(module)] = _NormModule(*row)

    def _running_norm(self) -> Module | None:
        """Return the batch norm layer that runs now; None if it has no running statistics."""
        path = self.program.module
        for module, name in self.program.table.modules():
            if name == path and isinstance(module, BATCH_NORM):
                return module if module.running_mean is not None else None
        return None

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Search for averages that have not been called in a recorded step."""
        record = self.program.steps.log.get(event.optimizer)
        count = 0 if record is None else record.steps
        if count < _MIN_STEPS or count & (count - 1) or not self._known:
            return
        frames = user_frames(user_frame(event.frame), self.program.frame)
        modules = list(_modules_of(frames))
        trained = self.program.steps.ever
        layers = [layer for _, module in modules for layer in _norms(module)]
        kinds = {
            (type(layer), layer.num_features)
            for layer in layers
            if id(layer.weight) in trained and _version(layer) > _MIN_WRITES
        }
        for path, module in modules:
            for layer in _norms(module):
                kind = type(layer), layer.num_features
                if kind in kinds and id(layer.weight) not in trained and _is_stale(layer):
                    written = self.program.changes.last_write(layer.weight)
                    place = None if written is None else written.place
                    self.events.note(StaleAverage(module=path), place)
                    break

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        known = list(self._known.values())
        trained = self.program.steps.ever
        moving = set()
        for each in known:
            module = each.module()
            if module is None or each.writes()[1] < _MIN_WRITES:
                continue
            if any(id(parameter) in trained for parameter in module.parameters()):
                moving.add(type(module))
        for each in known if moving else ():
            module, writes = each.module(), each.writes()
            if module is None or type(module) not in moving:
                continue
            first = next(module.parameters())
            if writes[0] < _MIN_WRITES or writes[1] or id(first) in trained:
                continue
            written = self.program.changes.last_write(first)
            place = None if written is None else written.place
            path = self.program.table.path(module) or each.path
            self.events.note(StaleAverage(module=path), place)

    def close(self) -> None:
        self._known = {}


def _modules_of(frames: list[FrameType]) -> Iterator[tuple[str, Module]]:
    """Yield the modules among variables, and among the attributes of objects in variables."""
    for frame in frames:
        for name, value in local_variables(frame, ATOMS).items():
            parts = [(name, value)]
            if type(value).__module__.partition(".")[0] != "torch":
                parts += [(f"{name}.{key}", part) for key, part in own_attributes(value).items()]
            yield from ((path, part) for path, part in parts if issubclass(type(part), Module))


def _norms(module: Module) -> Iterator[Any]:
    for layer in module.modules():
        if isinstance(layer, BATCH_NORM):
            tensors = (layer.weight, layer.running_mean, layer.running_var)
            if all(isinstance(tensor, Tensor) for tensor in tensors):
                yield layer


def _is_stale(layer: Any) -> bool:
    """Return True if the statistics of a layer are the first ones, and its weight is not."""
    tensors = (layer.weight, layer.running_mean, layer.running_var)
    if layer.training or layer.weight.requires_grad or layer.weight._version < _MIN_WRITES:
        return False
    if not all(tensor.is_cpu and may_be_read(tensor) for tensor in tensors):
        return False
    with unobserved():
        weight, mean, variance = map(TensorBase.detach, tensors)
        first = not torch.any(mean) and not torch.any(torch.ne(variance, 1))
        return first and bool(torch.any(torch.ne(weight, 1)))
