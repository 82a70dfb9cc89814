"""Record the values of the loss, and of other small results and leaves.

Results of calls that created nodes are read when they are computed. Roots of backward and leaves
are read when backward begins. Results inside compiled regions, and results of calls that created no
node, are not read. With `gradients="finite"`, only roots and leaves are read.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import Tensor

from ..internals.guards import no_functions
from ..internals.hooks.calls import Called
from ..internals.tensors.pytree import tensors
from ..internals.tensors.small_values import SmallValues, Values, is_small, is_small_shape
from .backward import Backward
from .listener import BackwardBegan, Listener
from .live import LiveGraph
from .program import Program
from .recorder import Columns

# The key of a result is (sequence number, output_nr, False), and the key of a leaf is (node id,
# index of the graph, True).
_Key = tuple[int, int, bool]


class SmallResults(Listener):
    """Listener that records the values of small tensors.

    Values on devices other than the CPU are copied when a graph is built.
    """

    needs = ()

    functions: Container[Any] | None

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.functions = None if program.options.every_call else frozenset()
        self._values: SmallValues[_Key] = SmallValues()

    def on_call_end(self, event: Called) -> None:
        """Read the result of a call that created a node."""
        _, _, _, result, _, start, end = event
        if end == start:
            return
        if type(result) is not Tensor or not self.program.stack.is_alone:
            self._see_each(result, end - 1)
            return
        try:
            small = is_small_shape(result.shape)
        except (RuntimeError, TypeError):  # the sizes are symbolic or nested
            return
        if small and result.requires_grad:
            self._values.see((end - 1, result.output_nr, False), result)

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Read the roots of the backward, which may be results of unobserved calls."""
        with no_functions():
            given = [each for each in event.outputs if isinstance(each, Tensor)]
            made = [(one.grad_fn, one) for one in given if is_small(one)]
            small = [(fn, one) for fn, one in made if fn is not None]
            keys = [(fn._sequence_nr(), one.output_nr, False) for fn, one in small]
        self._values.see_all(keys, [one for _, one in small])

    def on_graph_read(self, live: LiveGraph) -> None:
        """Read the small leaves of the graph."""
        outputs, fns = live.reading.columns["outputs"], list(live.ids)
        small = [
            i
            for i in live.reading.leaves.values()
            if outputs[i] and (meta := outputs[i][0]) is not None and is_small_shape(meta.shape)
        ]
        if small:
            with no_functions():
                leaves = [fns[i].variable for i in small]
            self._values.see_all([(i, live.position, True) for i in small], leaves)

    def node_columns(self, backward: Backward) -> Columns:
        outputs = backward.reading.columns["outputs"]
        found: dict[int, list[Values | None]] = {}
        for (number, place, leaf), values in self._values.fetch().items():
            if leaf:
                if place == backward.position:
                    found[number] = [values]
            elif (node := backward.node(number)) is not None and place < len(outputs[node]):
                row = found.setdefault(node, [None] * len(outputs[node]))
                row[place] = values
        return {"values": dict(zip(found, map(tuple, found.values()), strict=True))}

    def on_step_end(self, event: None) -> None:
        self._values = SmallValues()

    def _see_each(self, result: Any, number: int) -> None:
        with no_functions():
            made = [one for one in tensors(result) if one.requires_grad and is_small(one)]
            keys = [(number, one.output_nr, False) for one in made]
        self._values.see_all(keys, made)
