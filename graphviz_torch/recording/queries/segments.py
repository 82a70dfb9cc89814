"""Find checkpointed segments that run other modules in backward than in their first forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

import torch

from ...findings.rules.custom_functions import CheckpointDiffers
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame
from ...internals.hooks.checkpoints import reentrant_segment
from ...internals.hooks.engine import running_node
from ...internals.hooks.modules import ModuleBegan
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import TrainingStepRow


class SegmentCallRow(NamedTuple):
    """A call of a module inside a checkpointed segment with `use_reentrant=True`."""

    segment: int  # id() of the segment's node
    module: str  # path of the module
    place: CodePosition | None = None  # the line that calls the checkpoint
    is_rerun: bool = False  # True if backward runs the segment again
    learns: bool = True  # True if the module has trainable parameters of its own


def calls(event: ModuleBegan, program: Program) -> Iterable[SegmentCallRow]:
    """Return the row of a module's call inside a checkpointed segment."""
    if torch.is_grad_enabled() and running_node() is None:
        return ()
    segment = reentrant_segment(event.frame)
    path = None if segment is None else program.table.path(event.module)
    if segment is None or path is None:
        return ()
    node, first = segment
    place = None if first is None else program.place(user_frame(first))
    parameters = event.module._parameters.values()
    learns = any(each is not None and each.requires_grad for each in parameters)
    return (SegmentCallRow(id(node), path, place, first is None, learns),)


@mutable
class _Segment:
    """A segment of the training step.

    The dictionaries contain the paths of the modules that each of its two forwards ran, in order.
    Their values are True for modules with trainable parameters of their own.
    """

    place: CodePosition | None = None
    first: dict[str, bool] = field(default_factory=dict)
    second: dict[str, bool] = field(default_factory=dict)


class CheckpointedSegments(Query):
    """Find segments whose two forwards do not run the same modules."""

    rows_of: ClassVar[RowsOf] = {"on_module_start": calls}

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}

    def on_call(self, row: SegmentCallRow) -> None:
        segment = self._segments.setdefault(row.segment, _Segment())
        if row.is_rerun:
            segment.second[row.module] = row.learns
        else:
            segment.place = row.place
            segment.first[row.module] = row.learns

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._segments = {}

    def events_of_run(self) -> Iterator[Found]:
        lines: dict[CodePosition | None, dict[str, Any]] = {}
        for segment in self._segments.values():
            if not segment.first or not segment.second:
                continue  # a part of the segment was not recorded
            skipped = _trainable_only_in(segment.first, segment.second)
            added = _trainable_only_in(segment.second, segment.first)
            if skipped or added:
                line = lines.setdefault(segment.place, {"skipped": [], "added": []})
                line["skipped"] += skipped
                line["added"] += added
        for place, line in lines.items():
            latest = {name: tuple(dict.fromkeys(paths)) for name, paths in line.items()}
            yield Found(CheckpointDiffers(), place, latest=latest)


def _trainable_only_in(one: dict[str, bool], other: dict[str, bool]) -> list[str]:
    """Return the modules of `one` that have trainable parameters and are not in `other`."""
    return [name for name, learns in one.items() if learns and name not in other]
