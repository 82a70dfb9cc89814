"""Check calls with two tensors inside a compiled region, with the checks of queries/pairs.py."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, cast

from torch import Tensor

from ...graph import Event
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..program.events import TensorRecord
from ..program.identities import Identities
from ..queries.pairs import PairedTensors, pairs

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


class Pairs:
    """The query `PairedTensors`, applied to one graph that Dynamo traced with fake tensors."""

    def __init__(self) -> None:
        self._query, self._program = PairedTensors(), _NamelessProgram()
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
        function, frame = _OPERATORS.get(function, function), cast(Any, None)
        event = Called(function, tuple(args), kwargs, result, frame, 0, 0)
        for row in (
            pairs(event, cast(Any, self._program)) if function in PairedTensors.functions else ()
        ):
            for found in self._query.read(row):
                if "operands" in found.latest:
                    call = found.event, found.numbers, found.latest["operands"], meta
                    self.noted.append(PairedCall(*call))


class _NamelessProgram:
    """A `Program` without names and source lines, for graphs traced with fake tensors."""

    def __init__(self) -> None:
        self.identities = Identities()
        self.steps = SimpleNamespace(count=0, is_own_call=lambda frame: False)
        self.log = SimpleNamespace(admits=lambda *args, **kwargs: False)

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        return ""

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        return [""] * len(given)

    def place(self, frame: FrameType | None) -> None:
        return None
