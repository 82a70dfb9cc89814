"""Find losses that a program computes and reads, but that no backward uses.

Only a value whose variable has "loss", "penalty" or "aux" in its name is a loss. It must share
nodes with the graph of the loss that is used, so that a validation loss is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor

from ...findings.rules.unused_values import UnusedLoss
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...tracing.tracer import collect_nodes
from ..program import Program
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf
from ..program.rows import GraphRow

_LOSS = re.compile(r"loss|penalty|aux", re.IGNORECASE)
_MIN_STEPS = 2
_MAX_READS = 64  # number of reads in a step
# Prefixes of the nodes of a loss function, such as cross_entropy, of a mean of its results, and of
# leaves.
_FUNCTIONS = (
    *("LogSoftmax", "Nll", "BinaryCrossEntropy", "KlDiv", "Mse", "L1Loss", "SmoothL1", "Huber"),
    *("Mean", "Sum", "Div", "Neg", "torch::autograd::AccumulateGrad"),
)


class LossReadRow(NamedTuple):
    """A read of a scalar with a graph, through which no backward has run in this step."""

    label: str
    place: CodePosition | None
    number: int  # sequence number of the scalar's node
    upstream: Mapping[int, str]  # names of the nodes that it was computed from, by sequence number
    step: int  # number of optimizer steps before the read


def loss_reads(event: Called, program: Program) -> Iterable[LossReadRow]:
    """Return a row if a call reads the value of a loss through which no backward has run."""
    tensor = event.args[0]
    fn = tensor.grad_fn if type(tensor) is Tensor and TensorBase.dim(tensor) == 0 else None
    number = -1 if fn is None else int(fn._sequence_nr())
    if fn is None or number in program.numbers_ran:
        return ()
    label = program.label(tensor, user_frame(event.frame))
    if not _LOSS.search(label) or not program.log.admits(LossReadRow, most=_MAX_READS):
        return ()
    nodes = collect_nodes([fn])[0]
    upstream = {int(each._sequence_nr()): str(each.name()) for each in nodes}
    place, step = program.place(event.frame), program.steps.count
    return (LossReadRow(label, place, number, upstream, step),)


class UnusedLosses(Query):
    """Find losses whose value is read, and that no backward uses."""

    functions = frozenset(
        getattr(space, name)
        for space in (Tensor, TensorBase)
        for name in ("item", "tolist", "detach", "__float__", "__format__")
        if hasattr(space, name)
    )
    rows_of: ClassVar[RowsOf] = {"on_call_end": loss_reads}

    def __init__(self) -> None:
        self._reads: list[LossReadRow] = []
        # Sequence numbers of the nodes of the backwards in this step, and in the step before, whose
        # losses the program may read after its end.
        self._used: set[int] = set()
        self._before: set[int] = set()
        # Name of a loss -> number of steps in which its value was read, and no backward used it.
        self._steps: dict[str, int] = {}

    def on_loss_read(self, row: LossReadRow) -> None:
        self._reads.append(row)

    def on_graph(self, row: GraphRow) -> None:
        self._used.update(row.numbers)

    def events_of_run(self) -> Iterator[Found]:
        reads, used = self._reads, self._used | self._before
        self._reads, self._used, self._before = [], set(), self._used
        unused: dict[str, list[LossReadRow]] = {}
        for read in reads:
            if read.number in used:
                self._steps.pop(read.label, None)
            elif max(read.upstream.keys() & used, default=0) > 0:
                unused.setdefault(read.label, []).append(read)
        for label, found in unused.items():
            steps = self._steps.get(label, 0) + len({read.step for read in found})
            self._steps[label] = steps
            if steps >= _MIN_STEPS:
                made, upstream = NodeLine(found[0].number), found[0].upstream
                own = [name for number, name in upstream.items() if number not in used]
                event = UnusedLoss(label=label, compares=all(n.startswith(_FUNCTIONS) for n in own))
                yield Found(event, found[0].place, latest={"made": made, "steps": steps})
