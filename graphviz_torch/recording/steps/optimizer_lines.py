"""Find lines of the program's own optimizers that change only one of the parameters.

The in-place calls inside each step are counted by line. A line that changes one parameter, while
another line changes all of them, is probably outside of the loop over the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from torch import Tensor

from ...findings.rules.meaning.optimizer_lines import LineOfOneParameter
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.frames import OWN, CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepping, parameters_of
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.pytree import tensors
from ...internals.tensors.weak import Ref
from ..backward import Backward
from ..listener import Listener
from ..program import Program
from ..program.in_place import IN_PLACE

_MAX_OPTIMIZERS, _MAX_LINES = 8, 64
_MIN_PARAMETERS = 3  # an optimizer of fewer parameters is not checked
_MIN_STEPS = 2  # a line is reported after this number of steps that ran it


@mutable
class _LineChanges:
    """A line of an optimizer's step that changes parameters in place."""

    changed: dict[int, int] = field(default_factory=dict)  # storage id -> number of changes
    steps: int = 0  # the last step that ran it
    count: int = 0  # number of steps that ran it


@mutable
class _OwnOptimizer:
    """An optimizer with a step in the program's own code."""

    name: str
    step: int = 0  # number of observed steps
    groups: int = 1
    parameters: dict[int, Ref] = field(default_factory=dict)  # those with a gradient, by storage id
    lines: dict[CodePosition, _LineChanges] = field(default_factory=dict)


class OptimizerLines(Listener):
    """Listener that reports a line of an optimizer that changes only one of the parameters."""

    needs = ("every_call",)
    functions = IN_PLACE
    before = frozenset[object]()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._optimizers: dict[int, _OwnOptimizer] = {}
        self._running: _OwnOptimizer | None = None

    def on_optimizer_step_start(self, event: Stepping) -> None:
        self._running = None
        optimizer = event.optimizer
        record = self.program.steps.log.get(optimizer)
        if record is None or type(optimizer).__module__.startswith("torch."):
            return
        if record.number not in self._optimizers:
            if len(self._optimizers) >= _MAX_OPTIMIZERS:
                return
            name = self.program.optimizer_name(optimizer, user_frame(event.frame))
            self._optimizers[record.number] = _OwnOptimizer(name)
        self._running = known = self._optimizers[record.number]
        known.step += 1
        known.groups = len(optimizer.param_groups)
        learning = [p for p in parameters_of(optimizer) if p.is_leaf and p.grad is not None]
        known.parameters = {storage_id(p): Ref(p) for p in learning if has_memory(p)}

    def on_optimizer_step_end(self, event: object) -> None:
        self._running = None

    def on_call_end(self, event: Called) -> None:
        known = self._running
        if known is None or self.program.stack.files[event.frame.f_code.co_filename] != OWN:
            return
        keys = [storage_id(t) for t in tensors(event.args[:1]) if has_memory(t)]
        keys = [key for key in keys if key in known.parameters]
        if not keys or not self.program.steps.is_own_call(event.frame):
            return
        place = event.frame.f_code, event.frame.f_lasti
        if place not in known.lines and len(known.lines) >= _MAX_LINES:
            return
        line = known.lines.setdefault(place, _LineChanges())
        line.count += line.steps != known.step
        line.steps = known.step
        for key in keys:
            line.changed[key] = line.changed.get(key, 0) + 1

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        for known in self._optimizers.values():
            for place, other, parameter in _lines_of_one(known):
                self.events.note(
                    LineOfOneParameter(optimizer=known.name),
                    place,
                    leaves=[id(parameter)],
                    parameters=len(known.parameters),
                    other=self.program.line()(other),
                )

    def close(self) -> None:
        self._optimizers, self._running = {}, None


def _lines_of_one(known: _OwnOptimizer) -> Iterator[tuple[CodePosition, CodePosition, Tensor]]:
    """Yield each line that changes one parameter, a line that changes all, and the parameter."""
    if len(known.parameters) < max(_MIN_PARAMETERS, 2 * known.groups):
        return
    whole = [p for p, line in known.lines.items() if line.changed.keys() >= known.parameters.keys()]
    for place, line in known.lines.items():
        few = line.count >= _MIN_STEPS and len(line.changed) == 1
        parameter = known.parameters[next(iter(line.changed))]() if few and whole else None
        # An optimizer may treat the only parameter of a kind on its own.
        kinds = [
            TensorBase.dim(p) for each in known.parameters.values() if (p := each()) is not None
        ]
        if parameter is not None and kinds.count(TensorBase.dim(parameter)) > 1:
            yield place, whole[0], parameter
