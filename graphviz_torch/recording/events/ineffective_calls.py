"""Find calls in the wrong train/eval mode, and `retain_graph=True` without a second backward.

These calls are reported: functional dropout that drops values in eval mode; an optimizer step with
gradients of a forward in eval mode; and a backward that retains its graph, although no other
backward runs through the graph.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import Any

from torch.nn import Module, functional

from ...findings.rules.freezing import EvalMode
from ...findings.rules.meaning.calls import DropoutInEvalMode, RetainedBy, UnneededRetainGraph
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame, user_frames
from ...internals.functions import BATCH_NORM, DROPOUT
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepping
from ..backward import Backward
from ..listener import BackwardBegan, BackwardEnded, Listener, Resumed
from ..live import roots_of
from ..program import Program
from ..program.code import codes, find_method_call

_MAX_LINES = 64  # maximum number of observed lines that call backward
_MAX_GRAPHS = 4  # maximum number of retained graphs per line to compare with later backwards


@mutable
class _RetainedGraphs:
    """The graphs that backward calls at one source line retained (`retain_graph=True`)."""

    by: RetainedBy
    count: int = 0  # number of retained graphs
    runs_again: bool = False  # True if another backward ran through any of them
    # Sequence numbers of the nodes of the latest graphs.
    numbers: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_MAX_GRAPHS))


class DropoutAndRetainedGraphs(Listener):
    """Listener that reports dropout in eval mode, and graphs retained without need."""

    needs = ("every_call",)
    functions = frozenset(
        (
            functional.dropout,
            functional.dropout1d,
            functional.dropout2d,
            functional.dropout3d,
            functional.scaled_dot_product_attention,
        )
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Line of a dropout call -> values of the model's `training` at these calls.
        self._modes: dict[CodePosition | None, set[bool]] = {}
        self._modules: dict[str, bool] = {}  # path of a module -> result of `_own_mode_decides`
        self._root: weakref.ref[Module] | None = None
        # Line that calls backward -> the graphs that it retained.
        self._graphs: dict[CodePosition | None, _RetainedGraphs] = {}

    def on_call_end(self, event: Called) -> None:
        """Report a dropout call that drops values in train mode and in eval mode."""
        if not _drops(event.func, event.args, event.kwargs or {}):
            return
        path = self.program.module
        if path not in self._modules:
            self._modules[path] = self._own_mode_decides(path)
        root = None if self._root is None else self._root()
        if root is None or self._modules[path]:
            return
        place = self.program.place(event.frame)
        known = self._modes.setdefault(place, set())
        known.add(bool(getattr(root, "training", True)))
        if len(known) == 2:
            self.events.note(DropoutInEvalMode(function=event.func.__name__), place)

    def _own_mode_decides(self, path: str) -> bool:
        """Return True if the module at a path is an nn.Dropout of the model.

        The mode of the nn.Dropout, not that of the model, then decides whether values are dropped.
        """
        modules = self.program.table.modules()
        if not modules:
            return True
        root = modules[0][0]
        self._root = weakref.ref(root)
        running = next((module for module, name in modules if name == path), None)
        return isinstance(running, DROPOUT) and any(m is running for m in root.modules())

    def on_backward_end(self, event: BackwardEnded) -> None:
        backward, call = event.backward, event.backward.call
        for known in self._graphs.values():
            known.runs_again |= any(map(backward.has_run, chain.from_iterable(known.numbers)))
        if call.retains and not backward.failed:
            by: RetainedBy = "create_graph" if call.creates else "retain_graph"
            known = self._graphs.setdefault(call.place, _RetainedGraphs(by))
            known.count += 1
            known.numbers.append(frozenset(backward.numbers) - {-1})
            while len(self._graphs) > _MAX_LINES:
                del self._graphs[next(iter(self._graphs))]

    def on_resume(self, event: Resumed) -> None:
        self._graphs = {}  # an unobserved backward may have run through these graphs in the pause

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._look_at_graphs({backward.call.place for backward in backwards})

    def _look_at_graphs(self, places: Collection[CodePosition | None]) -> None:
        """Report lines that retain graphs through which no other backward runs.

        Args:
            places: the lines that called backward.
        """
        for place, known in self._graphs.items():
            # A single graph is not reported, because the program may still use it.
            if place in places and known.count > 1 and not known.runs_again:
                self.events.note(UnneededRetainGraph(by=known.by), place, count=known.count)


def _drops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if this dropout call drops values."""
    if func is functional.scaled_dot_product_attention:
        rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        return bool(rate)
    rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    return bool(rate) and bool(training)


class EvalModes(Listener):
    """Listener that reports an optimizer step with gradients of a forward in eval mode.

    A backward in eval mode is reported only if the optimizer steps with its gradients. An
    adversarial attack, for example, also runs a backward in eval mode, but the optimizer steps
    after another backward in train mode.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # The event for the last backward and the sequence numbers of the backward's roots. None if
        # the model was in train mode.
        self._last: tuple[EvalMode, list[int]] | None = None

    def on_backward_start(self, event: BackwardBegan) -> None:
        if not event.live.call.accumulates:
            return
        mode = _eval_mode(self.program)
        self._last = None if mode is None else (mode, roots_of(event.outputs))

    def on_optimizer_step_start(self, event: Stepping) -> None:
        if self._last is not None:
            mode, numbers = self._last
            # Frames around the step are searched, too: `graphviz-torch run` begins the recording
            # before the script runs, so the frames around the recording are not the script's.
            frames = user_frames(user_frame(sys._getframe(1)), self.program.frame)
            around = [frame.f_code for frame in frames]
            self.events.note(
                mode, find_method_call(codes(self.program, more=around), "eval"), numbers
            )

    def on_step_end(self, event: None) -> None:
        self._last = None


def _eval_mode(program: Program) -> EvalMode | None:
    """Return an event if the model, its dropout and its batch norm layers are in eval mode.

    Layers that were not called are ignored. The result is None in any other case, also for a model
    in train mode whose batch norm layers the program froze on purpose.
    """
    table = program.table
    every = table.modules()
    layers = []  # called layers that would return different results in train mode
    for module, path in every:
        acts = isinstance(module, DROPOUT) and module.p > 0
        acts = acts or (isinstance(module, BATCH_NORM) and module.track_running_stats)
        if acts and table.ran(path):
            layers.append((path, module))
    if not layers:
        return None
    training = [path for module, path in every if _in_train_mode(module)]
    if any(not t or f"{path}.".startswith(f"{t}.") for path, _ in layers for t in training):
        return None
    found = [(path, module) for path, module in layers if table.learns(module)]
    if not found:
        return None
    classes = tuple(dict.fromkeys(type(module).__name__ for _, module in found))
    return EvalMode(module=found[0][0], count=len(found), classes=classes)


def _in_train_mode(module: Module) -> bool:
    """Return True if a module is in train mode, or has no `training` attribute."""
    return bool(getattr(module, "training", True))
