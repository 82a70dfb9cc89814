"""Observe active dropout and batch norm, and find dropout that is switched off for good.

A dropout whose probability was set to 0 for an evaluation, and not restored, stays off.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch.nn import Module
from torch.nn import functional as F

from ...findings.rules.modes import DropoutSwitchedOff
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame, user_frames
from ...internals.functions import DROPOUT
from ...internals.hooks.calls import Called
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.pytree import tensors
from ..listener import Listener
from ..program import Program
from ..program.code import codes
from ..program.events import UserLine
from ..queries.modes import DropoutRow, ForwardRow, FrozenNormRow

_MAX_LINES = 256  # maximum number of lines with dropout to observe
_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout}
_ATTENTION = F.scaled_dot_product_attention


@mutable
class _Dropping:
    """A line that calls a dropout."""

    rate: float
    step: int  # number of optimizer steps at the last call that dropped values


class TrainModes(Listener):
    """Listener that appends rows of active dropout and batch norm, by call and by forward.

    Functional dropouts have a row of their own, unless the mode of an nn.Dropout of the model
    decides whether they drop values. The listener reports dropout that is switched off.
    """

    functions = frozenset((*_DROPOUTS, _ATTENTION, F.batch_norm))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._active: dict[str, None] = {}  # active in the outermost forward
        self._dropping: dict[tuple[CodePosition | None, str], _Dropping] = {}
        self._root: weakref.ref[Module] | None = None  # the model
        self._modules: dict[str, bool] = {}  # path of a module -> result of `_own_mode_decides`

    def on_outermost_start(self, event: ModuleBegan) -> None:
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
                    place = self.program.place(event.frame)
                    self.program.log.append(FrozenNormRow(self.program.module, place))
            return
        rate, training = self._rate(event.func, args, kwargs)
        if training and rate:
            self._active["dropout"] = None
            self._append_row(event)
        if training and torch.is_grad_enabled():
            self._look_at_rate(event, float(rate))

    def _append_row(self, event: Called) -> None:
        path = self.program.module
        if path not in self._modules:
            self._modules[path] = self._own_mode_decides(path)
        root = None if self._root is None else self._root()
        if root is not None and not self._modules[path]:
            place, training = self.program.place(event.frame), bool(getattr(root, "training", True))
            self.program.log.append(DropoutRow(event.func.__name__, place, training))

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

    def on_outermost_end(self, event: ModuleEnded) -> None:
        active, self._active = self._active, {}
        if not active or event.output is None:
            return
        frames = user_frames(user_frame(event.frame))
        lines = tuple([(frame.f_code, frame.f_lasti) for frame in reversed(frames)])
        has_gradients = any(tensor.requires_grad for tensor in tensors(event.output))
        learns = has_gradients or any(p.requires_grad for p in event.module.parameters())
        row = ForwardRow(self.program.module, lines, tuple(active), has_gradients, learns)
        self.program.log.append(row)


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
