"""Find trained weights that the program overwrites between two optimizer steps.

When a trained parameter is overwritten for the first time after an optimizer step, a few of its old
values are stored. If the parameter has other values at the next step, the updates before the copy
are lost. A program that evaluates with other weights, and restores the trained weights before the
next step, is not reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...findings.rules.overwritten import CopyOntoItself, OverwrittenWeights
from ...internals.frames import CodePosition
from ...internals.functions import LOAD_STATE_CODE, TensorBase
from ...internals.hooks.calls import Called, Calling
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import has_memory, may_be_read, storage_id
from ...internals.tensors.weak import Ref
from ..listener import Listener, Resumed
from ..program import Program
from ..program.in_place import same_memory

_MAX_VALUES = 64  # maximum number of values of a parameter to compare
_MAX_PARAMETERS = 10_000  # maximum number of trained parameters to remember
_MAX_COMPARED = 16  # maximum number of overwritten parameters to compare between two steps


@dataclass(slots=True)
class _Overwritten:
    """A trained parameter that a copy has overwritten since the last optimizer step."""

    parameter: Ref
    values: Tensor  # first values of the parameter before the copy
    operation: str
    place: CodePosition | None


class Overwrites(Listener):
    """Listener that reports copies into trained parameters, and of a parameter into itself."""

    needs = ("every_call",)
    functions = frozenset((TensorBase.copy_,))
    before = functions

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._trained: dict[int, Ref] = {}  # parameters that steps have updated, by storage id
        self._overwritten: dict[int, _Overwritten] = {}  # by storage id of the parameter
        self._changed: list[tuple[Probe, _Overwritten]] = []

    def on_call_start(self, event: Calling) -> None:
        target, source = [*event.args[:2], None, None][:2]
        if not (isinstance(target, Tensor) and isinstance(source, Tensor) and has_memory(target)):
            return
        key = storage_id(target)
        if key not in self._trained or self.program.steps.is_own_call(event.frame):
            return
        loads = event.frame.f_code is LOAD_STATE_CODE
        operation = "load_state_dict" if loads else "copy_"
        if has_memory(source) and same_memory(target, source):
            self.events.note(CopyOntoItself(operation=operation), self.program.place(event.frame))
            return
        # A source that was never changed in place is probably a new result, such as a projection of
        # the parameter. The program then updates the parameter on purpose.
        changed = not TensorBase.is_inference(source) and source._version > 0
        lasts = loads or isinstance(source, torch.nn.Parameter) or changed
        if not lasts or key in self._overwritten or len(self._overwritten) >= _MAX_COMPARED:
            return
        if may_be_read(target) and not target.is_sparse:
            with unobserved():
                values = torch.clone(_first_values(target))
            place = self.program.place(event.frame)
            self._overwritten[key] = _Overwritten(self._trained[key], values, operation, place)

    def on_call_end(self, event: Called) -> None:
        """Do nothing: a copy is checked before it runs."""

    def on_optimizer_step_start(self, event: Stepping) -> None:
        overwritten, self._overwritten = self._overwritten, {}
        for each in overwritten.values():
            parameter = each.parameter()
            if parameter is None:
                continue
            changed = probe(
                lambda now, before: torch.any(torch.ne(_first_values(now), before)),
                parameter,
                each.values,
            )
            if changed is not None:
                self._changed.append((changed, each))

    def on_optimizer_step_end(self, event: Stepped) -> None:
        if len(self._trained) < _MAX_PARAMETERS:
            for parameter in parameters_of(event.optimizer):
                if parameter.requires_grad and parameter.is_leaf and parameter.grad is not None:
                    self._trained[storage_id(parameter)] = Ref(parameter)

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        changed, self._changed = self._changed, []
        rows = fetch([answer for answer, _ in changed])
        for (_, each), row in zip(changed, rows, strict=True):
            if any(row):
                self.events.note(OverwrittenWeights(operation=each.operation), each.place)

    def on_resume(self, event: Resumed) -> None:
        self._overwritten = {}

    def close(self) -> None:
        self._trained, self._overwritten, self._changed = {}, {}, []


def _first_values(tensor: Tensor) -> Tensor:
    flat = TensorBase.reshape(TensorBase.detach(tensor), (-1,))
    return torch.narrow(flat, 0, 0, min(_MAX_VALUES, flat.shape[0]))
