"""Find lines of the program's own optimizers that change only one of the parameters.

The in-place calls inside each step are counted by line. A line that changes one parameter, while
another line changes all of them, is probably outside of the loop over the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import ClassVar

from torch.optim import Optimizer

from ...findings.rules.meaning.optimizer_lines import LineOfOneParameter
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import OWN, CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepping, parameters_of
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import tensors
from ..program import Program
from ..program.events import UserLine
from ..program.in_place import IN_PLACE
from ..program.log import Found, Query, RowsOf
from ..program.rows import StepEndRow

_MAX_OPTIMIZERS, _MAX_LINES = 8, 64
_MIN_PARAMETERS = 3  # an optimizer of fewer parameters is not checked
_MIN_STEPS = 2  # a line is reported after this number of steps that ran it


@mutable
class _LineChanges:
    """A line of an optimizer's step that changes parameters in place."""

    changed: dict[int, int] = field(default_factory=dict)  # by storage: number of changes
    steps: int = 0  # the last step that ran it
    count: int = 0  # number of steps that ran it


class OwnStepRow(NamedTuple):
    """An optimizer of the program's own code that is about to step."""

    optimizer: int
    name: str
    groups: int
    # Parameters with a gradient: number of the storage -> id() and number of dimensions.
    parameters: Mapping[int, tuple[int, int]]


class ChangedRow(NamedTuple):
    """A call in the step of such an optimizer that changes its first argument in place."""

    place: CodePosition
    storages: tuple[int, ...]  # numbers of the storages of parameters that it may change


def own_steps(event: Stepping, program: Program) -> Iterable[OwnStepRow]:
    """Return a row if an optimizer has a step in the program's own code."""
    optimizer, record = event.optimizer, program.steps.log.get(event.optimizer)
    if record is None or _is_of_torch(optimizer):
        return ()
    learning = [p for p in parameters_of(optimizer) if p.is_leaf and p.grad is not None]
    number = program.identities.memory_number
    known = {number(p): (id(p), TensorBase.dim(p)) for p in learning if has_memory(p)}
    name = program.optimizer_name(optimizer, user_frame(event.frame))
    return (OwnStepRow(record.number, name, len(optimizer.param_groups), known),)


def changes(event: Called, program: Program) -> Iterable[ChangedRow]:
    """Return a row of an in-place call in the step of an optimizer of the program's own."""
    running, frame = program.steps.running, event.frame
    if not running or _is_of_torch(running[-1].optimizer):
        return ()
    if program.stack.files[frame.f_code.co_filename] != OWN:
        return ()
    find = program.identities.find_memory
    known = [find(each) for each in tensors(event.args[:1]) if has_memory(each)]
    storages = tuple([each for each in known if each is not None])
    if not storages or not program.steps.is_own_call(frame):
        return ()
    return (ChangedRow((frame.f_code, frame.f_lasti), storages),)


def _is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.")


@mutable
class _OwnOptimizer:
    """An optimizer with a step in the program's own code."""

    row: OwnStepRow  # of the last step
    step: int = 0  # number of observed steps
    lines: dict[CodePosition, _LineChanges] = field(default_factory=dict)


class OptimizerLines(Query):
    """Find lines of an optimizer that change only one of the parameters."""

    functions = IN_PLACE
    rows_of: ClassVar[RowsOf] = {"on_call_end": changes, "on_optimizer_step_start": own_steps}

    def __init__(self) -> None:
        self._optimizers: dict[int, _OwnOptimizer] = {}
        self._running: _OwnOptimizer | None = None

    def on_own_step(self, row: OwnStepRow) -> None:
        self._running = None
        if row.optimizer in self._optimizers or len(self._optimizers) < _MAX_OPTIMIZERS:
            known = self._optimizers.setdefault(row.optimizer, _OwnOptimizer(row))
            self._running, known.row, known.step = known, row, known.step + 1

    def on_changed(self, row: ChangedRow) -> None:
        known = self._running
        keys = [] if known is None else [n for n in row.storages if n in known.row.parameters]
        if known is None or not keys:
            return
        if row.place not in known.lines and len(known.lines) >= _MAX_LINES:
            return
        line = known.lines.setdefault(row.place, _LineChanges())
        line.count += line.steps != known.step
        line.steps = known.step
        for key in keys:
            line.changed[key] = line.changed.get(key, 0) + 1

    def on_step_end(self, row: StepEndRow) -> None:
        self._running = None

    def events_of_run(self) -> Iterator[Found]:
        for known in self._optimizers.values():
            event, count = LineOfOneParameter(optimizer=known.row.name), len(known.row.parameters)
            for place, other, parameter in _lines_of_one(known):
                latest = {"parameters": count, "other": UserLine(other)}
                yield Found(event, place, leaves=(parameter,), latest=latest)


def _lines_of_one(known: _OwnOptimizer) -> Iterator[tuple[CodePosition, CodePosition, int]]:
    """Yield each line that changes one parameter, a line that changes all, and the parameter."""
    parameters = known.row.parameters
    if len(parameters) < max(_MIN_PARAMETERS, 2 * known.row.groups):
        return
    whole = [p for p, line in known.lines.items() if line.changed.keys() >= parameters.keys()]
    # An optimizer may treat the only parameter of a kind on its own.
    kinds = [dimensions for _, dimensions in parameters.values()]
    for place, line in known.lines.items():
        few = line.count >= _MIN_STEPS and len(line.changed) == 1
        key, dimensions = parameters.get(next(iter(line.changed)), (0, 0))
        if few and whole and kinds.count(dimensions) > 1:
            yield place, whole[0], key
