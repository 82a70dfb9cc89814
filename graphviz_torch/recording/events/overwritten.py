"""Find trained weights that the program overwrites between two optimizer steps.

When a trained parameter is overwritten for the first time after an optimizer step, a few of its old
values are stored. If the parameter has other values at the next step, the updates before the copy
are lost. A program that evaluates with other weights, and restores the trained weights before the
next step, is not reported.

After the recorded steps, no copy is observed. A few values of one parameter of each optimizer are
compared instead, after a step and before the next one. If they differ, the variables of the program
show whether it kept the trained values, and with which ones it replaced them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...findings.rules.written_values import CopyOntoItself, OverwrittenWeights, UnrestoredWeights
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition, local_variables, user_frame, user_frames
from ...internals.functions import LOAD_STATE_CODE, TensorBase
from ...internals.hooks.calls import Called, Calling
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import has_memory, may_be_read, storage_id
from ...internals.tensors.pytree import ATOMS, flatten, own_attributes
from ...internals.tensors.references import Ref
from ..listener import Listener, Resumed
from ..program import Program
from ..program.code import find_method_call
from ..program.in_place import same_memory

_MAX_VALUES = 64  # maximum number of values of a parameter to compare
_MAX_PARAMETERS = 10_000  # maximum number of trained parameters to remember
_MAX_COMPARED = 16  # maximum number of overwritten parameters to compare between two steps
_MAX_OPTIMIZERS = 8
_MAX_SEARCHES = 4  # maximum number of searches through the variables of the program
_WRITES = {"copy_", "load_state_dict", "set_"}


@mutable
class _Overwritten:
    """A trained parameter that a copy has overwritten since the last optimizer step."""

    parameter: Ref
    values: Tensor  # first values of the parameter before the copy
    operation: str
    place: CodePosition | None


class _VariableTensor(NamedTuple):
    """A tensor that a variable of the program refers to."""

    variable: str  # "ema"
    value: Any  # the value of this variable
    path: str  # "ema.stored"
    tensor: Tensor


class _StepValues(NamedTuple):
    """The first values of a parameter after a step of its optimizer."""

    parameter: Ref
    values: Tensor


class Overwrites(Listener):
    """Listener that reports copies into trained parameters, and of a parameter into itself."""

    functions = frozenset((TensorBase.copy_,))
    before = functions
    sees_later_steps = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._trained: dict[int, Ref] = {}  # parameters that steps have updated, by storage id
        self._overwritten: dict[int, _Overwritten] = {}  # by storage id of the parameter
        self._changed: list[tuple[Probe, _Overwritten]] = []
        self._after: dict[int, _StepValues] = {}  # after the last step, by number of the optimizer
        self._last: _StepValues | None = None  # those of the optimizer that steps now
        self._searches = 0
        self._is_reported = False  # True once weights that were not restored are reported

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
        if self._has_other_values(event.optimizer):
            self._searches += 1
            self._note_unrestored(event, next(iter(overwritten.values()), None))
        if self._is_reported:
            return
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
        record = self.program.steps.log.get(event.optimizer)
        if record is not None and not self._is_reported and self._searches < _MAX_SEARCHES:
            sampled = next(filter(_may_be_sampled, parameters_of(event.optimizer)), None)
            if sampled is not None and len(self._after) < _MAX_OPTIMIZERS:
                with unobserved():
                    values = torch.clone(_first_values(sampled))
                self._after[record.number] = _StepValues(Ref(sampled), values)

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        changed, self._changed = self._changed, []
        rows = fetch([answer for answer, _ in changed])
        for (_, each), row in zip(changed, rows, strict=True):
            if any(row):
                self.events.note(OverwrittenWeights(operation=each.operation), each.place)

    def on_resume(self, event: Resumed) -> None:
        self._overwritten, self._after = {}, {}

    def close(self) -> None:
        self._trained, self._overwritten, self._changed, self._after = {}, {}, [], {}

    def _has_other_values(self, optimizer: Optimizer) -> bool:
        """Return True if a parameter has other values than after the optimizer's last step."""
        record = self.program.steps.log.get(optimizer)
        self._last = None if record is None else self._after.pop(record.number, None)
        parameter = None if self._last is None else self._last.parameter()
        if self._last is None or parameter is None or not _may_be_sampled(parameter):
            return False
        with unobserved():
            return not torch.equal(_first_values(parameter), self._last.values)

    def _note_unrestored(self, event: Stepping, copied: _Overwritten | None) -> None:
        """Report replaced parameters if the program still has the trained values.

        Args:
            event: the step before which the parameters have other values.
            copied: an observed copy into a parameter.
        """
        parameter = None if self._last is None else self._last.parameter()
        if self._last is None or parameter is None:
            return
        frames = user_frames(user_frame(event.frame), self.program.frame)
        trained, source = None, None
        with unobserved():
            now = _first_values(parameter)
            for found in _tensors_of_variables(frames, parameter):
                values = _first_values(found.tensor)
                if torch.equal(values, self._last.values):
                    trained = trained or found
                elif torch.equal(values, now):
                    source = source or found
        if trained is None or source is None:
            return
        place = None if copied is None else copied.place
        place = place or _copying_line(frames, source)
        self.events.note(
            UnrestoredWeights(kept=trained.path, source=source.path),
            place or self.program.place(event.frame),
            step=self.program.steps.count,
        )
        self._is_reported, self._after = True, {}


def _first_values(tensor: Tensor) -> Tensor:
    flat = TensorBase.reshape(TensorBase.detach(tensor), (-1,))
    return torch.narrow(flat, 0, 0, min(_MAX_VALUES, flat.shape[0]))


def _may_be_sampled(parameter: Tensor) -> bool:
    """Return True if the first values of a parameter can be compared without waiting."""
    dense = parameter.is_cpu and parameter.layout is torch.strided and may_be_read(parameter)
    return dense and TensorBase.dim(parameter) > 1 and TensorBase.numel(parameter) > 1


def _tensors_of_variables(frames: list[FrameType], like: Tensor) -> Iterator[_VariableTensor]:
    """Yield the tensors of variables that have the shape of a parameter and memory of their own.

    Args:
        frames: the frames whose variables are searched, with the attributes of objects in them.
        like: the parameter.
    """
    for frame in frames:
        for name, value in local_variables(frame, ATOMS).items():
            parts = [(name, value)]
            if type(value).__module__.partition(".")[0] != "torch":
                parts += [(f"{name}.{key}", part) for key, part in own_attributes(value).items()]
            for path, part in parts:
                modules = issubclass(type(part), torch.nn.Module)
                found = part.parameters() if modules else (t for _, t in flatten(part, ask=False))
                for tensor in found:
                    alike = tensor.shape == like.shape and tensor.dtype is like.dtype
                    if alike and _may_be_sampled(tensor) and not same_memory(tensor, like):
                        yield _VariableTensor(name, value, path, tensor)


def _copying_line(frames: list[FrameType], source: _VariableTensor) -> CodePosition | None:
    """Return the only line that calls a method which reads a tensor and writes into tensors.

    Args:
        frames: the frames whose code is searched.
        source: the tensor, which is an attribute of the method's object.
    """
    attribute, writing = source.path.rpartition(".")[2], []
    for name, method in vars(type(source.value)).items():
        names = {*getattr(getattr(method, "__code__", None), "co_names", ())}
        if attribute in names and _WRITES & names:
            writing.append(name)
    around = [frame.f_code for frame in frames]
    lines = [find_method_call(around, name, source.variable) for name in writing]
    found = {line for line in lines if line is not None}
    if not found:
        lines = [find_method_call(around, name) for name in _WRITES]
        found = {line for line in lines if line is not None}
    return found.pop() if len(found) == 1 else None
