"""What calls inside a region tell that take tensors together: shapes that broadcast, losses."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from ...graph import Event
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..events.events import Events, TensorRecord
from ..events.pairs import ARITHMETIC, JUDGED, KEEPING, PAIRED, UNSQUEEZE, PairListener

# Dynamo has functions of Python's for the operators.
_OPERATORS: dict[Any, Any] = {
    getattr(operator, name): getattr(TensorBase, f"__{name}__")
    for name in ["sub", "add", "mul", "truediv", "eq", "ne", "gt", "lt", "ge", "le", "getitem"]
}


class Pair(NamedTuple):
    """A call that is noted."""

    event: Event  # without its line, nodes and operands
    numbers: tuple[int, ...]  # of the nodes that it made
    operands: tuple[TensorRecord, ...]
    meta: dict[str, Any]  # of its node in dynamo's graph


class Pairs(PairListener):
    """What the calls of one graph tell, while they run on tensors without memory."""

    def __init__(self) -> None:
        program: Any = _Nameless()
        super().__init__(program)
        self.events = _Noted()
        self.noted: list[Pair] = []

    def call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """A function has been called."""
        function = _OPERATORS.get(function, function)
        frame: Any = None
        event = Called(function, tuple(args), kwargs, result, frame, 0, 0)
        if function in UNSQUEEZE or function in KEEPING or function is TensorBase.__getitem__:
            self.shape(event)
        elif function in ARITHMETIC:
            self.elementwise(event)
        elif function in PAIRED or function in JUDGED:
            self.loss(event)
        noted = self.events
        if isinstance(noted, _Noted):
            self.noted += [Pair(*row, meta) for row in noted.rows]
            noted.rows.clear()


class _Noted(Events):
    """Events as they are noted, not counted."""

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
    """Stands for the program: of tensors without memory no name and no line is known."""

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        return ""

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        return [""] * len(given)

    def place(self, frame: FrameType | None) -> None:
        return None
