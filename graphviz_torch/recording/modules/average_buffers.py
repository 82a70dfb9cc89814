"""Find averages of the weights that leave out the running statistics of batch norm.

A teacher or an averaged model is a copy whose parameters the program changes in place. If its
buffers keep their values while those of the trained model change, batch norm in the copy normalizes
with old statistics. Versions of tensors are compared, not values.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.nn import Module

from ...graph.events import StaleBuffers
from ...internals.functions import BATCH_NORM
from ...internals.hooks.modules import ModuleBegan
from ..listener import Listener
from ..program import Program

_MAX_MODULES = 64  # modules whose versions are kept
_MIN_WRITES = 2  # changes of a parameter, for a module to be an average


@dataclass(slots=True)
class _NormModule:
    """An outermost module with batch norm, with versions when it was first called."""

    module: weakref.ref[Module]
    path: str
    norm: weakref.ref[Module]
    parameter_version: int
    buffer_version: int

    def writes(self) -> tuple[int, int]:
        """Return how often the first parameter and the buffers were changed; -1 if freed."""
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

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._known: dict[int, _NormModule | None] = {}  # by id() of the module; None: no norm
        attempt = program.remarks.attempt
        program.stack.on_outermost_start.append(partial(attempt, self._on_outermost_start))

    def _on_outermost_start(self, event: ModuleBegan) -> None:
        key = id(event.module)
        known = self._known.get(key)
        if key in self._known and (known is None or known.module() is event.module):
            return
        if len(self._known) >= _MAX_MODULES:
            return
        self._known[key] = None
        for norm in event.module.modules():
            if isinstance(norm, BATCH_NORM) and norm.running_mean is not None:
                first = next(event.module.parameters(), None)
                if first is not None and not first.is_inference():
                    self._known[key] = _NormModule(
                        weakref.ref(event.module),
                        self.program.table.path(event.module) or "",
                        weakref.ref(norm),
                        first._version,
                        _version(norm),
                    )
                return

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        known = [each for each in self._known.values() if each is not None]
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
            self.events.note(StaleBuffers(module=path, count=writes[0]), place)

    def close(self) -> None:
        self.program.stack.close()
        self._known = {}
