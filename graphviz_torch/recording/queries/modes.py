"""Record the train or eval mode of modules, and find calls in the wrong mode.

Calls in the wrong mode are functional dropout that drops values in eval mode, an optimizer step
with gradients of a forward in eval mode, and a forward without gradients in train mode. Such a
forward, as of a reference model or of a validation, usually belongs in eval mode: otherwise dropout
makes its result random, and batch norm normalizes with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from types import CodeType
from typing import ClassVar

from ...findings.rules.freezing import EvalMode
from ...findings.rules.meaning.calls import DropoutInEvalMode
from ...findings.rules.modes import TrainModeWithoutGradients
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ..live import LiveGraph
from ..program import Program
from ..program.events import MethodCall
from ..program.log import Found, Query, RowsOf
from ..program.rows import BackwardRow, GraphRow, OptimizerRow, StepRow, TrainingStepRow
from ..program.source_lines import Lines, own_line
from ..recorder import ModuleColumns

_MAX_STACKS = 16  # maximum number of call stacks to keep for a module


class ModesRow(NamedTuple):
    """The modes of the modules that have run when a graph is read."""

    modes: dict[str, str]  # path of a module -> "train" or "eval"


def module_modes(live: LiveGraph, program: Program) -> Iterable[ModesRow]:
    """Return a row of the modes of the modules that have run."""
    known = [(m.training, p) for m, p in program.table.called_modules() if hasattr(m, "training")]
    return (ModesRow({path: "train" if training else "eval" for training, path in known}),)


class Modes(Query):
    """Record the mode of each module at the last graph that was read."""

    needs = ()
    rows_of: ClassVar[RowsOf] = {"on_graph_read": module_modes}

    def __init__(self) -> None:
        self._modes: dict[str, str] = {}

    def on_modes(self, row: ModesRow) -> None:
        self._modes |= row.modes

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._modes = {}

    def module_columns(self) -> ModuleColumns:
        return {"mode": self._modes}


class DropoutRow(NamedTuple):
    """A functional dropout that has dropped values, and whose mode the program passes to it."""

    function: str
    place: CodePosition | None
    training: bool  # True if the model is in train mode


class DropoutModes(Query):
    """Find lines whose dropout drops values in train mode and in eval mode."""

    def __init__(self) -> None:
        self._modes: dict[CodePosition | None, set[bool]] = {}

    def on_dropout(self, row: DropoutRow) -> Iterator[Found]:
        known = self._modes.setdefault(row.place, set())
        known.add(row.training)
        if len(known) == 2:
            yield Found(DropoutInEvalMode(function=row.function), row.place)


class EvalModes(Query):
    """Find optimizer steps with gradients of a forward in eval mode.

    A backward in eval mode is reported only if the optimizer steps with its gradients. An
    adversarial attack, for example, also runs a backward in eval mode, but the optimizer steps
    after another backward in train mode.
    """

    def __init__(self) -> None:
        self._last: BackwardRow | None = None  # the last backward of this training step
        self._around: dict[int, tuple[CodeType, ...]] = {}  # by optimizer
        self._first: int | None = None  # an optimizer at its first step, whose row follows

    def on_backward(self, row: BackwardRow) -> None:
        self._last = row

    def on_step(self, row: StepRow) -> Iterator[Found]:
        if self._last is not None and self._last.eval_layers:
            self._first = None if row.optimizer in self._around else row.optimizer
            if self._first is None:
                yield self._found(self._last, row.optimizer)

    def on_optimizer(self, row: OptimizerRow) -> Iterator[Found]:
        self._around[row.optimizer] = row.around
        if self._last is not None and row.optimizer == self._first:
            yield self._found(self._last, row.optimizer)
            self._first = None

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._last = self._first = None

    def _found(self, backward: BackwardRow, optimizer: int) -> Found:
        layers = backward.eval_layers
        classes = tuple(dict.fromkeys(kind for _, kind in layers))
        mode = EvalMode(module=layers[0][0], count=len(layers), classes=classes)
        place = MethodCall("eval", around=self._around[optimizer])
        return Found(mode, place, backward.roots)


class ForwardRow(NamedTuple):
    """An outermost forward in which dropout or batch norm was active."""

    module: str  # path of the module
    lines: Lines
    active: tuple[str, ...]  # "dropout", "batch norm"
    has_gradients: bool  # True if a result requires a gradient
    learns: bool = True  # True if a parameter of the module, or a result, requires a gradient


class FrozenNormRow(NamedTuple):
    """A batch norm layer with frozen weights that normalizes with the batch."""

    module: str  # path of the layer
    place: CodePosition | None


@mutable
class _ModuleForwards:
    """The outermost forwards of a module, by call stack."""

    active: dict[str, None] = field(default_factory=dict)  # as in `ForwardRow`
    is_frozen: bool = False  # True if no parameter of the module requires a gradient
    with_gradients: list[Lines] = field(default_factory=list)
    without: dict[Lines, int] = field(default_factory=dict)  # number of forwards


class TrainModesWithoutGradients(Query):
    """Find forwards without gradients, and frozen layers, with active dropout or batch norm."""

    def __init__(self) -> None:
        self._trains = False  # True once an optimizer stepped, or the program updated a parameter
        self._forwards: dict[str, _ModuleForwards] = {}  # by path of the module
        # Line that calls batch norm -> paths of the layers with frozen weights.
        self._frozen: dict[CodePosition | None, dict[str, None]] = {}

    def on_frozen_norm(self, row: FrozenNormRow) -> None:
        self._frozen.setdefault(row.place, {})[row.module] = None

    def on_graph(self, row: GraphRow) -> None:
        self._trains = self._trains or row.steps > 0

    def on_step(self, row: StepRow) -> None:
        self._trains = True

    def on_forward(self, row: ForwardRow) -> None:
        known, lines = self._forwards.setdefault(row.module, _ModuleForwards()), row.lines
        if row.has_gradients:
            if lines not in known.with_gradients and len(known.with_gradients) < _MAX_STACKS:
                known.with_gradients.append(lines)
        elif lines in known.without or len(known.without) < _MAX_STACKS:
            known.without[lines] = known.without.get(lines, 0) + 1
            known.active |= dict.fromkeys(row.active)
            known.is_frozen = not row.learns

    def events_of_run(self) -> Iterator[Found]:
        if not self._trains:
            return
        for path, known in self._forwards.items():
            for lines, count in known.without.items():
                event = TrainModeWithoutGradients(
                    module=path, active=tuple(known.active), frozen=known.is_frozen
                )
                place = own_line(lines, known.with_gradients) if known.with_gradients else lines[-1]
                yield Found(event, place, latest={"count": count})
        for line, paths in self._frozen.items():
            first = next(iter(paths))
            around = [self._forwards[path] for path in _parents(first) if path in self._forwards]
            if not any(known.without for known in around):
                event = TrainModeWithoutGradients(active=("batch norm",), frozen=True)
                yield Found(event, line, latest={"module": first, "layers": len(paths)})


def _parents(path: str) -> list[str]:
    """Return a module's path and the paths of the modules that contain it, without the root."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
