"""Find losses that a program computes and reads, but that no backward uses.

Only a value whose variable has "loss", "penalty" or "aux" in its name is a loss. It must share
nodes with the graph of the loss that is used, so that a validation loss is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ...findings.rules.unused_losses import UnusedLoss
from ...graph import Graph
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...tracing.tracer import collect_nodes
from ..backward import Backward
from ..listener import BackwardBegan, Listener
from ..program import Program
from ..program.events import NodeLine

_LOSS = re.compile(r"loss|penalty|aux", re.IGNORECASE)
_MIN_STEPS = 2
_MAX_READS = 64  # number of reads in a step
# Prefixes of the nodes of a loss function, such as cross_entropy, of a mean of its results, and of
# leaves.
_FUNCTIONS = (
    *("LogSoftmax", "Nll", "BinaryCrossEntropy", "KlDiv", "Mse", "L1Loss", "SmoothL1", "Huber"),
    *("Mean", "Sum", "Div", "Neg", "torch::autograd::AccumulateGrad"),
)


class _Read(NamedTuple):
    """A scalar with a graph whose value the program read."""

    label: str
    place: CodePosition | None
    number: int  # sequence number of the scalar's node
    upstream: dict[int, str]  # names of the nodes that it was computed from, by sequence number
    step: int  # number of optimizer steps before the read


class UnusedLosses(Listener):
    """Listener that reports losses whose value is read, and that no backward uses."""

    functions = frozenset(
        getattr(space, name)
        for space in (Tensor, TensorBase)
        for name in ("item", "tolist", "detach", "__float__", "__format__")
        if hasattr(space, name)
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._reads: list[_Read] = []
        # Sequence numbers of the nodes of the backwards in this step, and in the step before, whose
        # losses the program may read after its end.
        self._used: set[int] = set()
        self._before: set[int] = set()
        # Name of a loss -> number of steps in which its value was read, and no backward used it.
        self._steps: dict[str, int] = {}

    def on_call_end(self, event: Called) -> None:
        tensor = event.args[0]
        fn = tensor.grad_fn if type(tensor) is Tensor and TensorBase.dim(tensor) == 0 else None
        if fn is None or int(fn._sequence_nr()) in self._used or len(self._reads) >= _MAX_READS:
            return
        label = self.program.label(tensor, user_frame(event.frame))
        if _LOSS.search(label):
            nodes = collect_nodes([fn])[0]
            upstream = {int(each._sequence_nr()): str(each.name()) for each in nodes}
            place, step = self.program.place(event.frame), self.program.steps.count
            self._reads.append(_Read(label, place, int(fn._sequence_nr()), upstream, step))

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._used.update(event.live.numbers)

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        reads, used = self._reads, self._used | self._before
        self._reads, self._used, self._before = [], set(), self._used
        unused: dict[str, list[_Read]] = {}
        for read in reads:
            if used and read.number in used:
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
                self.events.note(event, found[0].place, made=made, steps=steps)
