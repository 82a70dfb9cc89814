"""Check calls with two tensors inside a compiled region, with the checks of events/pairs.py."""

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

# Functions of Python's `operator` module, as in Dynamo's graph -> the equivalent tensor methods,
# which the checks know.
_OPERATORS: dict[Any, Any] = {
    getattr(operator, name): getattr(TensorBase, f"__{name}__")
    for name in ["sub", "add", "mul", "truediv", "eq", "ne", "gt", "lt", "ge", "le", "getitem"]
}


class PairedCall(NamedTuple):
    """An event caused by a call inside a compiled region."""

    event: Event  # the event; its line, nodes and operands are not set
    numbers: tuple[int, ...]  # sequence numbers of the nodes that the call created
    operands: tuple[TensorRecord, ...]
    meta: dict[str, Any]  # `meta` of the call's node in Dynamo's graph


class Pairs(PairedTensors):
    """The `PairedTensors` listener, applied to one graph that Dynamo traced with fake tensors."""

    def __init__(self) -> None:
        self._calls = _EventList()
        program: Any = _NamelessProgram(self._calls)
        super().__init__(program)
        self.noted: list[PairedCall] = []

    def call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Check one call of the graph, and add a `PairedCall` to `self.noted` for each event.

        Args:
            function: the called function.
            meta: `meta` of the call's node in Dynamo's graph.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
            result: the fake result.
        """
        function = _OPERATORS.get(function, function)
        frame: Any = None
        event = Called(function, tuple(args), kwargs, result, frame, 0, 0)
        if function in UNSQUEEZE or function in KEEPING or function is TensorBase.__getitem__:
            self.shape(event)
        elif function in ARITHMETIC:
            self.elementwise(event)
        elif function in PAIRED or function in JUDGED:
            self.loss(event)
        self.noted += [PairedCall(*row, meta) for row in self._calls.rows]
        self._calls.rows.clear()


class _EventList(Events):
    """An `Events` that collects each event in a list instead of counting equal ones."""

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


class _NamelessProgram:
    """A `Program` without names and source lines, for graphs traced with fake tensors."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        return ""

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        return [""] * len(given)

    def place(self, frame: FrameType | None) -> None:
        return None
