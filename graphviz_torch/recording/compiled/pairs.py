"""Calls inside a region that combine tensors: accidental broadcasts, losses."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from ...graph import Event
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..events.pairs import ARITHMETIC, JUDGED, KEEPING, PAIRED, UNSQUEEZE, PairedTensors
from ..program.events import Events, TensorRecord

# Dynamo has functions of Python's for the operators.
_OPERATORS: dict[Any, Any] = {
    getattr(operator, name): getattr(TensorBase, f"__{name}__")
    for name in ["sub", "add", "mul", "truediv", "eq", "ne", "gt", "lt", "ge", "le", "getitem"]
}


class Pair(NamedTuple):
    """A noted call."""

    event: Event  # without its line, nodes and operands
    numbers: tuple[int, ...]  # of the nodes that it made
    operands: tuple[TensorRecord, ...]
    meta: dict[str, Any]  # of its node in dynamo's graph


class Pairs(PairedTensors):
    """Observes the calls of one graph while they run on fake tensors."""

    def __init__(self) -> None:
        self._calls = _Noted()
        program: Any = _Nameless(self._calls)
        super().__init__(program)
        self.noted: list[Pair] = []

    def call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Handle a call of a function."""
        function = _OPERATORS.get(function, function)
        frame: Any = None
        event = Called(function, tuple(args), kwargs, result, frame, 0, 0)
        if function in UNSQUEEZE or function in KEEPING or function is TensorBase.__getitem__:
            self.shape(event)
        elif function in ARITHMETIC:
            self.elementwise(event)
        elif function in PAIRED or function in JUDGED:
            self.loss(event)
        self.noted += [Pair(*row, meta) for row in self._calls.rows]
        self._calls.rows.clear()


class _Noted(Events):
    """Collects events, uncounted."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Event, tuple[int, ...], tuple[TensorRecord, ...]]] = []

    def note(
        self,
        event: Event,
        place: Any = None,
        numbers: Any = (),
        leaves: Any = (),
        since: Any = None,
        **latest: Any,
    ) -> None:
        if "operands" in latest:
            self.rows.append((event, tuple(numbers), latest["operands"]))


class _Nameless:
    """A stand-in for the program: fake tensors have no names and lines."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        return ""

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        return [""] * len(given)

    def place(self, frame: FrameType | None) -> None:
        return None
