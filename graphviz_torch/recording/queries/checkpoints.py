"""Find checkpoints whose second forward differs from the first: in dropout, or in the modules run.

A checkpoint has to restore the random state of the first forward before it runs the forward again.
The state was not restored if the random generator still has the state from the start of backward,
or from the end of another repeated forward. Only the CPU's generator is read.

The modules that both forwards of a segment call are compared after the backward that has run the
segment's node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, ClassVar

import torch

from ...findings.rules.custom_functions import CheckpointDiffers, RedrawnDropout
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import DROPOUT, TensorBase
from ...internals.hooks.checkpoints import calling_position, redrawing_segment, reentrant_segment
from ...internals.hooks.engine import running_node
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.probes import run_unobserved
from ...internals.tensors.memory import may_be_read
from ..listener import BackwardBegan
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import GraphRow, TrainingStepRow


class RandomStateRow(NamedTuple):
    """The state of the random generator when a backward begins, or after a module ran again."""

    state: int
    number: int | None = None  # sequence number of the node that ran the module


class RepeatedForwardRow(NamedTuple):
    """A module with dropout that a node of a backward is about to run again."""

    state: int
    number: int  # sequence number of the node
    event: RedrawnDropout
    place: CodePosition | None  # the line that calls the checkpoint or the module, if it is known
    numbers: tuple[int, ...] = ()


def first_state(event: BackwardBegan, program: Program) -> Iterable[RandomStateRow]:
    """Return the state at the start of a backward."""
    return (RandomStateRow(_random_state()),)


def state_afterwards(event: ModuleEnded, program: Program) -> Iterable[RandomStateRow]:
    """Return the state after a node of a backward has run a module again."""
    node: Any = running_node()
    return () if node is None else (RandomStateRow(_random_state(), int(node._sequence_nr())),)


def repeated_forwards(event: ModuleBegan, program: Program) -> Iterable[RepeatedForwardRow]:
    """Return a row if a node of a backward is about to run a module with dropout again."""
    node: Any = running_node()
    dropout = None if node is None else next(filter(_draws, event.module.modules()), None)
    if dropout is None:
        return ()
    path = dict(program.table.modules()).get(dropout, "")
    drawn = RedrawnDropout(module=path, checkpoint=_checkpoints(node, event))
    row = RepeatedForwardRow(_random_state(), int(node._sequence_nr()), drawn, None)
    segment = redrawing_segment(event.frame)
    if segment is not None:
        return (row._replace(place=calling_position(segment)),)
    place = None if drawn.checkpoint else program.place(user_frame(event.frame))
    return (row._replace(place=place, numbers=(row.number,)),)


class RedrawnDropouts(Query):
    """Find modules whose dropout draws another mask when they run again."""

    rows_of: ClassVar[RowsOf] = {
        "on_backward_start": first_state,
        "on_outermost_start": repeated_forwards,
        "on_outermost_end": state_afterwards,
    }

    def __init__(self) -> None:
        # State at the start of backward, and after each module that ran again -> node that ran the
        # module; None for the start.
        self._states: dict[int, int | None] = {}

    def on_random_state(self, row: RandomStateRow) -> None:
        if row.number is None:
            self._states = {}
        self._states.setdefault(row.state, row.number)

    def on_repeated_forward(self, row: RepeatedForwardRow) -> Iterator[Found]:
        # A node may run several modules after it has restored the state.
        if self._states.get(row.state, row.number) != row.number:
            yield Found(row.event, row.place, row.numbers)


def _checkpoints(node: Any, event: ModuleBegan) -> bool:
    """Return True if torch.utils.checkpoint runs the module again, False if another node does."""
    reentrant = getattr(node, "preserve_rng_state", True) is False
    return reentrant or redrawing_segment(event.frame) is not None


def _draws(module: torch.nn.Module) -> bool:
    """Return True for a dropout that drops values of CPU tensors."""
    return isinstance(module, DROPOUT) and module.training and bool(getattr(module, "p", 0))


def _random_state() -> int:
    """Return a hash of the state of the CPU's random generator."""
    return run_unobserved(_hash_of_state)


def _hash_of_state() -> int:
    state = torch.default_generator.get_state()
    return hash(bytes(TensorBase.numpy(state))) if may_be_read(state) else 0


class SegmentCallRow(NamedTuple):
    """A call of a module inside a checkpointed segment with `use_reentrant=True`."""

    segment: int  # sequence number of the segment's node
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
    return (SegmentCallRow(int(node._sequence_nr()), path, place, first is None, learns),)


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
        self._segments: dict[int, _Segment] = {}  # by the sequence number of the segment's node
        # Line -> the modules that only the first, and only the second forwards of its segments ran.
        self._lines: dict[CodePosition | None, tuple[dict[str, None], dict[str, None]]] = {}

    def on_call(self, row: SegmentCallRow) -> None:
        segment = self._segments.setdefault(row.segment, _Segment())
        if row.is_rerun:
            segment.second[row.module] = row.learns
        else:
            segment.place = row.place
            segment.first[row.module] = row.learns

    def on_graph(self, row: GraphRow) -> Iterator[Found]:
        found: dict[CodePosition | None, None] = {}
        ran = row.numbers_ran() if self._segments else frozenset()
        for key in [key for key in self._segments if key in ran]:
            segment = self._segments.pop(key)
            skipped = _trainable_only_in(segment.first, segment.second)
            added = _trainable_only_in(segment.second, segment.first)
            # A forward without any module was not recorded.
            if segment.first and segment.second and (skipped or added):
                line = self._lines.setdefault(segment.place, ({}, {}))
                line[0].update(dict.fromkeys(skipped))
                line[1].update(dict.fromkeys(added))
                found[segment.place] = None
        for place in found:
            paths = map(tuple, self._lines[place])
            latest = dict(zip(("skipped", "added"), paths, strict=True))
            yield Found(CheckpointDiffers(), place, latest=latest)

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._segments = {}


def _trainable_only_in(one: dict[str, bool], other: dict[str, bool]) -> list[str]:
    """Return the modules of `one` that have trainable parameters and are not in `other`."""
    return [name for name, learns in one.items() if learns and name not in other]
