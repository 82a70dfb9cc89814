"""Find dropout and batch norm in a wrong mode: active without gradients, or switched off for good.

A forward without gradients, as of a reference model or of a validation, usually belongs in eval
mode: otherwise dropout makes its result random, and batch norm normalizes with the batch. A dropout
whose probability was set to 0 for an evaluation, and not restored, stays off.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch.nn import functional as F

from ...findings.rules.modes import DropoutSwitchedOff, TrainModeWithoutGradients
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame, user_frames
from ...internals.hooks.calls import Called
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.pytree import tensors
from ..listener import Listener
from ..program import Program
from ..program.call_lines import Lines, own_line
from ..program.code import codes
from ..program.events import UserLine

_MAX_STACKS = 16  # maximum number of call stacks to keep for a module
_MAX_LINES = 256  # maximum number of lines with dropout to observe
_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout}
_ATTENTION = F.scaled_dot_product_attention


@mutable
class _ModuleForwards:
    """The outermost forwards of a module with active dropout or batch norm, by call stack."""

    classes: dict[str, None]  # "dropout", "batch norm"
    frozen: bool = False  # True if no parameter of the module requires a gradient
    with_gradients: list[Lines] = field(default_factory=list)
    without: dict[Lines, int] = field(default_factory=dict)  # number of forwards


@mutable
class _Dropping:
    """A line that calls a dropout."""

    rate: float
    step: int  # number of optimizer steps at the last call that dropped values
    off: bool = False  # True if a later call had the probability 0


class TrainModes(Listener):
    """Listener that reports dropout and batch norm in a wrong mode."""

    needs = ("every_call",)
    functions = frozenset((*_DROPOUTS, _ATTENTION, F.batch_norm))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._active: dict[str, None] = {}  # active in the outermost forward
        self._forwards: dict[str, _ModuleForwards] = {}  # by path of the module
        # Paths of batch norm layers with frozen weights in train mode, by line.
        self._frozen: dict[CodePosition | None, dict[str, None]] = {}
        self._dropping: dict[tuple[CodePosition | None, str], _Dropping] = {}
        attempt = program.remarks.attempt
        program.stack.on_outermost_start.append(partial(attempt, self._on_outermost_start))
        program.stack.on_outermost_end.append(partial(attempt, self._on_outermost_end))

    def _on_outermost_start(self, event: ModuleBegan) -> None:
        self._active = {}

    def on_call_end(self, event: Called) -> None:
        args, kwargs = event.args, event.kwargs or {}
        if event.func is F.batch_norm:
            training = args[5] if len(args) > 5 else kwargs.get("training", False)
            # Without running statistics, batch norm has no other mode.
            if training and (args[1] if len(args) > 1 else kwargs.get("running_mean")) is not None:
                self._active["batch norm"] = None
                weight = args[3] if len(args) > 3 else kwargs.get("weight")
                if torch.is_grad_enabled() and weight is not None and not weight.requires_grad:
                    self._frozen.setdefault(self.program.place(event.frame), {})[
                        self.program.module
                    ] = None
            return
        rate, training = self._rate(event.func, args, kwargs)
        if training and rate:
            self._active["dropout"] = None
        if training and torch.is_grad_enabled():
            self._look_at_rate(event, float(rate))

    def _rate(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[float, bool]:
        """Return the probability of a dropout call, and whether its module is in train mode."""
        if func is _ATTENTION:
            rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            module = self._running_module()
            return rate, bool(rate) or bool(getattr(module, "training", False))
        rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return rate, bool(args[2] if len(args) > 2 else kwargs.get("training", True))

    def _running_module(self) -> Any:
        path = self.program.module
        return next((m for m, name in self.program.table.modules() if name == path), None)

    def _look_at_rate(self, event: Called, rate: float) -> None:
        """Report a call with the probability 0 at a line that dropped values in an earlier step.

        Args:
            event: the call of a dropout.
            rate: the probability with which it drops values.
        """
        key = self.program.place(event.frame), self.program.module
        known, step = self._dropping.get(key), self.program.steps.count
        if rate:
            if known is None and len(self._dropping) < _MAX_LINES:
                self._dropping[key] = _Dropping(rate, step)
            elif known is not None:
                known.rate, known.step = rate, step
        elif known is not None and known.step < step:
            place, name = self._assignment(event)
            found = DropoutSwitchedOff(function=event.func.__name__, rate=known.rate)
            self.events.note(
                found,
                place or key[0],
                attribute=name,
                called=UserLine(key[0]),
            )

    def _assignment(self, event: Called) -> tuple[CodePosition | None, str]:
        """Return the line that sets the dropout's probability, and the name of the attribute.

        Lines in `__init__` are ignored. Unless there is exactly one line, the result is (None, "").
        """
        module = self._running_module()
        names = [
            name
            for name, value in vars(module).items()
            if type(value) in (int, float) and not value and ("drop" in name or name == "p")
        ]
        frames = [f.f_code for f in user_frames(user_frame(event.frame), self.program.frame)]
        every = [code for code in codes(self.program, more=frames) if code.co_name != "__init__"]
        found = {(place, name) for code in every for name in names for place in _stores(code, name)}
        return found.pop() if len(found) == 1 else (None, "")

    def _on_outermost_end(self, event: ModuleEnded) -> None:
        active, self._active = self._active, {}
        if not active or event.output is None:
            return
        known = self._forwards.setdefault(self.program.module, _ModuleForwards({}))
        frames = user_frames(user_frame(event.frame))
        lines = tuple([(frame.f_code, frame.f_lasti) for frame in reversed(frames)])
        if any(tensor.requires_grad for tensor in tensors(event.output)):
            if lines not in known.with_gradients and len(known.with_gradients) < _MAX_STACKS:
                known.with_gradients.append(lines)
        elif lines in known.without or len(known.without) < _MAX_STACKS:
            known.without[lines] = known.without.get(lines, 0) + 1
            known.classes |= active
            learns = (p.requires_grad for p in event.module.parameters())
            known.frozen = not any(learns)

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        if not self.program.steps.count:
            return
        for path, known in self._forwards.items():
            for lines, count in known.without.items():
                event = TrainModeWithoutGradients(
                    module=path, active=tuple(known.classes), frozen=known.frozen
                )
                place = own_line(lines, known.with_gradients) if known.with_gradients else lines[-1]
                self.events.note(event, place, count=count)
        for line, paths in self._frozen.items():
            first = next(iter(paths))
            around = [self._forwards[path] for path in _parents(first) if path in self._forwards]
            if not any(known.without for known in around):
                event = TrainModeWithoutGradients(active=("batch norm",), frozen=True)
                self.events.note(event, line, module=first, layers=len(paths))

    def close(self) -> None:
        self.program.stack.close()
        self._forwards = {}


def _parents(path: str) -> list[str]:
    """Return a module's path and the paths of the modules that contain it, without the root."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def _stores(code: CodeType, attribute: str) -> list[CodePosition]:
    """Return the positions at which code assigns to an attribute.

    If some assign the constant 0, only these are returned.
    """
    steps = list(dis.get_instructions(code)) if attribute in code.co_names else []
    found = [i for i, s in enumerate(steps) if s.opname == "STORE_ATTR" and s.argval == attribute]
    zeros = [i for i in found if any(_is_zero(step) for step in steps[max(i - 3, 0) : i])]
    return [(code, steps[i].offset) for i in zeros or found]


def _is_zero(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and type(step.argval) in (int, float) and not step.argval
