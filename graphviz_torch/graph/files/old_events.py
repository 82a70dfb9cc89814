"""Events of files of the versions 1 and 2, in which all kinds were one row of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from ..events import (
    AttributeAssignment,
    Broadcast,
    ClipMoment,
    ConstantTerm,
    DataAssignment,
    EarlySchedulerStep,
    EvalMode,
    Event,
    GradientClearing,
    GradientClip,
    GradientRead,
    Holder,
    LeafBackward,
    LossCall,
    NonfiniteValue,
    OptimizerStep,
    Origin,
    ParameterFreeze,
    StrayParameters,
    UnsteppedBackward,
    VainBackward,
)
from ..values import Operand
from .columns import codec

Line = tuple[str, tuple[int, ...], int]  # where, nodes, times


class _Row(NamedTuple):
    """An event as it was written."""

    kind: Literal[
        "attribute",
        "backward",
        "broadcast",
        "clear",
        "clip",
        "constant",
        "data",
        "eval",
        "frozen",
        "grad",
        "leaf",
        "loss",
        "nonfinite",
        "schedule",
        "step",
        "unregistered",
    ]
    where: str = ""
    label: str = ""
    operation: str = ""
    detail: str = ""
    operands: tuple[Operand, ...] = ()
    nodes: tuple[int, ...] = ()
    times: int = 1

    @property
    def operand(self) -> Operand | None:
        return self.operands[0] if self.operands else None


def typed_events(data: Any, where: str) -> Any:
    """The events of a graph as those versions wrote them, as they are written today.

    Raises:
        ValueError: for what those versions did not write.
    """
    [rows] = codec(tuple[_Row, ...]).decode(data, 1, where)
    events = [_TYPED[row.kind](row, (row.where, row.nodes, row.times)) for row in rows]
    return codec(tuple[Event, ...]).encode([tuple(events)], where)


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _nonfinite(row: _Row, line: Line) -> Event:
    """Of a detail such as "made 2 NaN and Inf: its divisor has 2 zeros"."""
    made, _, reason = row.detail.removeprefix("made ").partition(": ")
    counts: dict[str, int | None] = {"NaN": 0, "Inf": 0}
    for part in made.split(" and "):
        number, _, kind = part.rpartition(" ")
        if kind in counts:
            counts[kind] = _number(number) if number else None
    origin: Origin = "operation"
    if reason == "a parameter of it is NaN or Inf already":
        origin = "parameter"
    elif reason.endswith("NaN already"):
        origin = "input"
    nan, inf = counts.values()
    made_at = row.operand.where if row.operand else ""
    nonfinite = NonfiniteValue(made_at, *line[1:], row.operation, nan, inf, origin, reason)
    return replace(nonfinite, in_loss=bool(row.label))


def _eval(row: _Row, line: Line) -> Event:
    classes = tuple(row.operation.split(", ")) if row.operation else ()
    return EvalMode(*line, row.label, _number(row.detail) or 1, classes)


def _clear(row: _Row, line: Line) -> Event:
    vain = row.operation == "backward"
    return VainBackward(*line) if vain else GradientClearing(*line, bool(row.operation))


def _holder(detail: str) -> Holder:
    return next((holder for holder in get_args(Holder) if holder == detail), "outside")


_MOMENTS: dict[str, ClipMoment] = {
    "nothing": "before backward",
    "after the step": "after the step",
    "while scaled": "while scaled",
}
_TYPED: dict[str, Callable[[_Row, Line], Event]] = {
    "attribute": lambda row, line: AttributeAssignment(*line, row.label, row.detail),
    "backward": lambda row, line: UnsteppedBackward(*line, tuple(row.label.split(", "))),
    "broadcast": lambda row, line: Broadcast(*line, row.operation, row.operands),
    "clear": _clear,
    "clip": lambda row, line: GradientClip(
        *line, row.operation, _MOMENTS.get(row.detail, "in time")
    ),
    "constant": lambda row, line: ConstantTerm(*line, row.operand),
    "data": lambda row, line: DataAssignment(*line, row.label, row.operand),
    "eval": _eval,
    "frozen": lambda row, line: ParameterFreeze(*line),
    "grad": lambda row, line: GradientRead(*line, row.label, row.operand),
    "leaf": lambda row, line: LeafBackward(*line, row.label, row.operation),
    "loss": lambda row, line: LossCall(*line, row.operation, row.operands),
    "nonfinite": _nonfinite,
    "schedule": lambda row, line: EarlySchedulerStep(*line, row.label, row.detail),
    "step": lambda row, line: OptimizerStep(*line, row.label, _number(row.detail)),
    "unregistered": lambda row, line: StrayParameters(*line, _holder(row.detail), row.label),
}
