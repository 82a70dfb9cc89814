"""Record fingerprints of forward results and leaves.

Results of calls that created nodes, and results of modules, are read when they are computed. Roots
of backward and leaves are read when backward begins. Only every k-th row and column of a large leaf
is read. Tensors inside compiled regions, results without a node, and tensors without dense memory
of their own have no fingerprint.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...graph import Fingerprint
from ...internals.exceptions import ignore_exceptions
from ...internals.functions import TensorBase
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ...internals.hooks.modules import ModuleEnded
from ...internals.tensors.memory import is_dense
from ...internals.tensors.pytree import tensors
from ..backward import Backward
from ..listener import BackwardBegan, Listener
from ..live import LiveGraph
from ..program import Program
from ..recorder import Columns
from .fingerprints import Fingerprints

# The key of a result is (sequence number, output_nr, False), and the key of a leaf is (node id,
# index of the graph, True).
_Key = tuple[int, int, bool]
_MAX_LEAF = 1 << 18  # about this many elements of a larger leaf are read


class ResultFingerprints(Listener):
    """Listener that records fingerprints of results, without waiting for a device."""

    needs = ("fingerprints",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._prints: Fingerprints[_Key] = Fingerprints()
        self._read: set[int] = set()  # sequence numbers of nodes whose results were read

    def on_call_end(self, event: Called) -> None:
        """Read the result of a call that created a node."""
        if event.end == event.start:
            return
        result = event.result
        if type(result) is Tensor:
            with no_functions():
                if result.requires_grad:
                    self._see(event.end - 1, result.output_nr, result)
        else:
            self._see_each(result)

    def on_module_end(self, event: ModuleEnded) -> None:
        """Read a module's results, unless an observed call returned them.

        Compiled regions and custom Functions create results without an observed call.
        """
        if event.output is not None:
            self._see_each(event.output, again=False)

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Read the roots of the backward, unless they were read before."""
        self._see_each(list(event.outputs), again=False)

    def on_graph_read(self, live: LiveGraph) -> None:
        """Read the leaves of the graph."""
        leaves = set(live.reading.leaves.values())
        with no_functions():
            for fn, node in live.ids.items():
                if node in leaves:
                    self._prints.see((node, live.position, True), _sample(fn.variable))

    def node_columns(self, backward: Backward) -> Columns:
        rows: dict[int, dict[int, Fingerprint]] = {}
        for (number, position, leaf), value in self._prints.fetch().items():
            if leaf and position == backward.position:
                rows[number] = {0: value}
            elif not leaf and (node := backward.node(number)) is not None:
                rows.setdefault(node, {})[position] = value
        return {"fingerprints": {node: _tuple(row) for node, row in rows.items()}}

    def on_step_end(self, event: None) -> None:
        self._prints, self._read = Fingerprints(), set()

    def close(self) -> None:
        """Drop all queued tensors."""
        self._prints = Fingerprints()

    def _see_each(self, value: Any, *, again: bool = True) -> None:
        with no_functions():
            for tensor in tensors(value):
                if not is_dense(tensor) or not tensor.requires_grad or tensor.grad_fn is None:
                    continue
                with ignore_exceptions():
                    number = tensor.grad_fn._sequence_nr()
                    if again or number not in self._read:
                        self._see(number, tensor.output_nr, tensor)

    def _see(self, number: int, output_nr: int, tensor: Tensor) -> None:
        self._prints.see((number, output_nr, False), tensor)
        self._read.add(number)


def _tuple(row: dict[int, Fingerprint]) -> tuple[Fingerprint | None, ...]:
    return tuple(row.get(i) for i in range(max(row) + 1))


def _sample(leaf: Tensor) -> Tensor:
    """Return every k-th row and column of a large leaf; a smaller leaf is returned whole."""
    if not is_dense(leaf) or TensorBase.numel(leaf) <= _MAX_LEAF:
        return leaf
    step = math.ceil(math.sqrt(TensorBase.numel(leaf) / _MAX_LEAF))
    leaf = TensorBase.detach(leaf)
    return leaf[::step, ::step] if TensorBase.dim(leaf) > 1 else leaf[:: step * step]
