"""Calls that do not do what they are for: noted as events.

Dropout that drops in eval mode, at a line that drops in train mode too; a backward that keeps its
graph, which no other one runs through; a scheduler that steps more often than its optimizer, or
goes on past its end, or whose optimizer never steps; an optimizer made anew for each step, one that
steps with a rate of 0, two that hold the same parameter.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch.nn import Module, functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ...graph import Graph
from ...graph.events import IdleCall
from ...internals.frames import local_variables, outwards, user_frame
from ...internals.functions import DROPOUT
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ..backward import Backward
from ..listener import Listener, Resumed, RunEnded
from ..program import Program
from ..program.source_lines import Place
from .code import called, codes
from .groups import look_at_groups
from .schedulers import schedulers

_MOST = 64  # optimizers that are remembered
_PARAMETERS = 10_000  # whose optimizers are remembered
_FEW = 3  # steps: fewer may have a reason
_GRAPHS = 4  # of a line that keeps them, that are still known


@dataclass(slots=True)
class _Schedule:
    """A scheduler, and where it stood when its optimizer stepped first."""

    scheduler: weakref.ref[LRScheduler]
    name: str
    started: int


@dataclass(slots=True)
class _Optimizer:
    """What is known of an optimizer that steps."""

    optimizer: weakref.ref[Optimizer]
    name: str
    place: Place | None
    schedules: list[_Schedule]
    steps: int = 0
    rest: int = 0  # of them, with a rate of 0 in all groups


@dataclass(slots=True)
class _Moments:
    """Of what steps with the same first parameter: how often it had no state, and had some."""

    name: str
    place: Place | None
    fresh: int = 0
    old: int = 0
    keeps: bool = False  # has it state after a step


@dataclass(slots=True)
class _RetainedGraphs:
    """What is known of the graphs that a line keeps, each time that it runs backward."""

    count: int = 0  # of graphs
    runs_again: bool = False  # did another backward run through any
    numbers: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_GRAPHS))


class IdleCalls(Listener):
    """Notes calls that do not do what they are for."""

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
        self._modes: dict[Place | None, set[bool]] = {}  # in which a line has dropped
        self._modules: dict[str, bool] = {}  # by path: does it go by its own mode
        self._root: weakref.ref[Module] | None = None
        self._optimizers: dict[int, _Optimizer] = {}  # by id()
        self._schedules: dict[int, _Schedule] = {}  # of optimizers that have not stepped, by id()
        self._owners: dict[int, tuple[weakref.ref[Optimizer], str]] = {}  # by id() of a parameter
        self._moments: dict[int, _Moments] = {}  # by id() of the first parameter
        self._graphs: dict[Place | None, _RetainedGraphs] = {}  # by the line that runs backward

    def called(self, event: Called) -> None:
        """Dropout: does it drop, and in which mode is the model?"""
        if not _drops(event.func, event.args, event.kwargs or {}):
            return
        path = self.program.module
        if path not in self._modules:
            self._modules[path] = self._goes_by_its_mode(path)
        root = None if self._root is None else self._root()
        if root is None or self._modules[path]:
            return
        place = self.program.place(event.frame)
        known = self._modes.setdefault(place, set())
        known.add(bool(getattr(root, "training", True)))
        if len(known) == 2:
            self.events.note(IdleCall(what="dropout", name=event.func.__name__), place)

    def _goes_by_its_mode(self, path: str) -> bool:
        """Is what runs a dropout of the model: its own mode is told by itself. Looked at once."""
        modules = self.program.table.modules()
        if not modules:
            return True
        root = modules[0][0]
        self._root = weakref.ref(root)
        running = next((module for module, name in modules if name == path), None)
        return isinstance(running, DROPOUT) and any(m is running for m in root.modules())

    def stepping(self, event: Stepping) -> None:
        optimizer = event.optimizer
        known = self._optimizers.get(id(optimizer))
        if known is None and len(self._optimizers) < _MOST:
            known = self._optimizers[id(optimizer)] = self._met(optimizer, event)
        if known is not None:
            known.steps += 1
            rates = [group.get("lr") for group in optimizer.param_groups]
            known.rest += all(type(rate) is float and rate == 0 for rate in rates)
            moments = self._of(optimizer, known)
            moments.fresh += not optimizer.state
            moments.old += bool(optimizer.state)

    def stepped(self, event: Stepped) -> None:
        known = self._optimizers.get(id(event.optimizer))
        if known is not None:
            self._of(event.optimizer, known).keeps |= bool(event.optimizer.state)

    def backward_ended(self, event: RunEnded) -> None:
        backward, call = event.backward, event.backward.call
        for known in self._graphs.values():
            known.runs_again |= any(map(backward.has_run, chain.from_iterable(known.numbers)))
        if call.retains and call.accumulates and not backward.failed:
            known = self._graphs.setdefault(call.place, _RetainedGraphs())
            known.count += 1
            known.numbers.append(frozenset(backward.numbers) - {-1})
            while len(self._graphs) > _MOST:
                del self._graphs[next(iter(self._graphs))]

    def resumed(self, event: Resumed) -> None:
        self._graphs = {}  # another backward may have run through them

    def step_ended(self, event: None) -> None:
        while len(self._moments) > _MOST:
            del self._moments[next(iter(self._moments))]

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        scaled = any(backward.call.loss_scale is not None for backward in backwards)
        for known in self._optimizers.values():
            for schedule in known.schedules:
                self._look_at(schedule, known, scaled)
            if known.rest >= _FEW and known.rest == known.steps:
                idle = IdleCall(what="rate", name=known.name)
                self.events.note(idle, known.place, count=known.rest)
        self._look_at_lone_schedulers()
        self._look_at_the_made()
        self._look_at_graphs({backward.call.place for backward in backwards})

    def _of(self, optimizer: Optimizer, known: _Optimizer) -> _Moments:
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        return self._moments.setdefault(id(first), _Moments(known.name, known.place))

    def _met(self, optimizer: Optimizer, event: Stepping) -> _Optimizer:
        """An optimizer steps for the first time."""
        frame = user_frame(event.frame)
        frames = outwards(frame, self.program.frame)
        name = self.program.optimizer_name(optimizer, frame)
        place = self.program.place(event.frame)
        look_at_groups(self.events, self.program, optimizer, name, place)
        self._look_for_owners(optimizer, name, place)
        found: dict[int, _Schedule] = {}
        for each in frames:
            for label, scheduler in schedulers(local_variables(each)):
                count = getattr(scheduler, "_step_count", 0)  # private (2.13)
                schedule = _Schedule(weakref.ref(scheduler), label, count)
                own = scheduler.optimizer is optimizer
                if own or len(self._schedules) < _MOST:
                    (found if own else self._schedules).setdefault(id(scheduler), schedule)
        return _Optimizer(weakref.ref(optimizer), name, place, list(found.values()))

    def _look_at(self, schedule: _Schedule, known: _Optimizer, scaled: bool) -> None:
        scheduler = schedule.scheduler()
        if scheduler is None:
            return
        steps = getattr(scheduler, "_step_count", 0) - schedule.started
        place = called(codes(self.program), "step", schedule.name.rpartition(".")[2])
        # A scaler may have skipped steps of the optimizer.
        if not scaled and known.steps > 1 and 2 * steps >= 3 * known.steps:
            idle = IdleCall(what="scheduler", name=schedule.name, optimizer=known.name)
            self.events.note(idle, place, count=steps, among=known.steps)
        end = getattr(scheduler, "T_max", None) if type(scheduler) is CosineAnnealingLR else None
        last = scheduler.last_epoch
        if end is not None and last - steps <= end < last:
            idle = IdleCall(what="past the end", name=schedule.name, optimizer=known.name)
            self.events.note(idle, place, count=last, among=int(end))

    def _look_at_lone_schedulers(self) -> None:
        """Does a scheduler step, and its optimizer never?"""
        optimizers = [known.optimizer() for known in self._optimizers.values()]
        stepped = {id(group) for each in optimizers if each for group in each.param_groups}
        for schedule in self._schedules.values():
            scheduler = schedule.scheduler()
            if scheduler is None or id(scheduler.optimizer) in self._optimizers:
                continue
            # What is wrapped around an optimizer has its groups.
            if any(id(group) in stepped for group in scheduler.optimizer.param_groups):
                continue
            steps = getattr(scheduler, "_step_count", 0) - schedule.started
            if steps >= _FEW:
                place = called(codes(self.program), "step", schedule.name.rpartition(".")[2])
                idle = IdleCall(what="lone scheduler", name=schedule.name)
                self.events.note(idle, place, count=steps)

    def _look_for_owners(self, optimizer: Optimizer, name: str, place: Place | None) -> None:
        """Does another optimizer that steps hold one of its parameters?"""
        both: dict[str, list[int]] = {}
        for key in map(id, parameters_of(optimizer)):
            known = self._owners.get(key)
            other = None if known is None else known[0]()
            if known is not None and other is not None and other is not optimizer:
                if not any(a is b for a in other.param_groups for b in optimizer.param_groups):
                    both.setdefault(known[1], []).append(key)
            elif len(self._owners) < _PARAMETERS:
                self._owners[key] = weakref.ref(optimizer), name
        for label, keys in both.items():
            idle = IdleCall(what="overlap", name=name, optimizer=label)
            self.events.note(idle, place, leaves=keys, count=len(keys))

    def _look_at_the_made(self) -> None:
        """Was an optimizer made for each step, which loses what it had learnt?"""
        for moments in self._moments.values():
            if moments.keeps and moments.fresh >= _FEW and not moments.old:
                made = IdleCall(what="optimizer", name=moments.name)
                self.events.note(made, moments.place, count=moments.fresh)

    def _look_at_graphs(self, places: Collection[Place | None]) -> None:
        """Does one of these lines keep its graph each time, and no backward run through it?"""
        for place, known in self._graphs.items():
            # What comes after the last is not known.
            if place in places and known.count > 1 and not known.runs_again:
                idle = IdleCall(what="graph", name="backward")
                self.events.note(idle, place, count=known.count)


def _drops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Does this call of a dropout drop anything?"""
    if func is functional.scaled_dot_product_attention:
        rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        return bool(rate)
    rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    return bool(rate) and bool(training)
