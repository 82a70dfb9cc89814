"""Which gradients and which results are not finite: no statistics, so that it can stay on.

Every gradient that a node is given is added up, and so is every result of a forward that has a
node: the sum is finite if all elements are, and only where it is not the elements are looked at. On
other devices than the CPU gradients are described as `statistics.py` does it, and the finite ones
are left out; sums of results stay there until the next backward, and tell neither NaN from Inf
nor what overflows. Not looked at: what has no values (meta, fake), sparse and nested results.

Of the forward the first result with NaN and the first with Inf are noted: a mask has -Inf on
purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ...graph import GradientStats, TensorMeta
from ...internals.functions import TensorBase
from ...internals.guards import no_autograd, no_functions, no_operators
from ...internals.hooks.nodes import Hooks
from ...internals.tensors.memory import elements
from ...internals.tensors.metadata import tensor_meta
from .cpu import end_to_end, on_cpu


class FiniteHooks:
    """A context with hooks on live nodes of the CPU, for one backward run.

    Args:
        nodes: the nodes, in the order of `Graph.nodes`, and the outputs of each.
        ran: where to add a row for each node that backward runs, which begins with it.
    """

    def __init__(
        self,
        nodes: Iterable[tuple[Any, tuple[TensorMeta | None, ...]]],
        ran: list[tuple[Any, ...]],
    ) -> None:
        self._ran = ran
        self._nodes = list(nodes)
        self._hooks = Hooks()
        self._found: dict[tuple[int, int], GradientStats] = {}

    def __enter__(self) -> FiniteHooks:
        see = self._see
        self._hooks.put(
            [(fn.register_prehook, partial(see, node)) for node, (fn, _) in enumerate(self._nodes)]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove()
        self._nodes = []

    def fail(self) -> None:
        """The run has failed."""

    def unhook(self) -> None:
        """Take off what an interrupt has left on."""
        self._hooks.remove()

    def add(self, given: Iterable[tuple[int, int, Tensor | None]]) -> None:
        """Look at gradients that no hook was given: by node and output_nr."""
        ran = {node for node, *_ in self._ran}
        for node, output_nr, gradient in given:
            if gradient is not None and node not in ran:
                self._look(node, output_nr, gradient)

    def statistics(
        self, outputs: Sequence[Sequence[object]]
    ) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that was given one that is not finite."""
        rows: dict[int, list[GradientStats | None]] = {}
        for (node, output_nr), stats in self._found.items():
            rows.setdefault(node, [None] * len(outputs[node]))[output_nr] = stats
        return {node: tuple(row) for node, row in rows.items()}

    def seconds(self) -> dict[int, float]:
        """Nothing is timed."""
        return {}

    def _see(self, node: int, gradients: tuple[Tensor | None, ...]) -> None:
        self._ran.append((node,))
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                self._look(node, output_nr, gradient)

    def _look(self, node: int, output_nr: int, gradient: Tensor) -> None:
        # No mode of the user's and no graph is to see it, and what PyTorch lacks ends nothing.
        try:
            with no_functions(), no_operators(), no_autograd():
                found = elements(gradient)
                if all(map(sums_up, found.tensors)):
                    return
                numbers = on_cpu(end_to_end(found.tensors), found.numel)
                if numbers[4] or numbers[5]:
                    stats = GradientStats(*numbers, None, tensor_meta(gradient), found.extent)
                    self._found[node, output_nr] = stats
        except Exception:
            pass


def sums_up(tensor: Tensor) -> bool:
    return math.isfinite(abs(TensorBase.item(TensorBase.sum(tensor))))
