"""Which gradients and which results are not finite: no statistics, so that it can stay on.

Every gradient that a node is given is added up, and so is every result of a forward that has a
node: the sum is finite if all elements are, and only where it is not the elements are looked at. On
other devices than the CPU gradients are described as `statistics.py` does it, of which the finite
ones are left out; sums of results stay there until the next backward, and tell neither NaN from Inf
nor what overflows. Not looked at: what has no values (meta, fake), sparse and nested results.

Of the forward the first result with NaN and the first with Inf are noted: a mask has -Inf on
purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...graph import GradientStats, TensorMeta
from ...internals.guards import no_autograd, no_functions, no_operators
from ...internals.hooks.nodes import Hooks
from ...internals.tensors.memory import elements, has_memory
from ...internals.tensors.metadata import tensor_meta
from ...internals.tensors.pytree import tensors
from .cpu import end_to_end, on_cpu


class FiniteGradients:
    """A context with hooks on live nodes of the CPU, for one backward run.

    Args:
        nodes: the nodes, in the order of `Graph.nodes`, and the outputs of each.
    """

    def __init__(self, nodes: Iterable[tuple[Any, tuple[TensorMeta | None, ...]]]) -> None:
        self.order: list[int] = []  # the nodes that backward ran, in its order
        self._nodes = list(nodes)
        self._hooks = Hooks()
        self._found: dict[tuple[int, int], GradientStats] = {}

    def __enter__(self) -> FiniteGradients:
        see = self._see
        self._hooks.put(
            (fn.register_prehook, partial(see, node)) for node, (fn, _) in enumerate(self._nodes)
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
        ran = set(self.order)
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
        self.order.append(node)
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                self._look(node, output_nr, gradient)

    def _look(self, node: int, output_nr: int, gradient: Tensor) -> None:
        # No mode of the user's and no graph is to see it, and what PyTorch lacks ends nothing.
        try:
            with no_functions(), no_operators(), no_autograd():
                found = elements(gradient)
                if all(map(_sums_up, found.tensors)):
                    return
                numbers = on_cpu(end_to_end(found.tensors), found.numel)
                if numbers[4] or numbers[5]:
                    stats = GradientStats(*numbers, None, tensor_meta(gradient), found.extent)
                    self._found[node, output_nr] = stats
        except Exception:
            pass


class FiniteResults:
    """Looks at the results of calls that made nodes."""

    def __init__(self) -> None:
        self._notes: dict[int, str] = {}
        self._missing = {"NaN", "Inf"}  # what no result has had so far
        self._sums: list[tuple[int, Tensor]] = []  # on other devices

    def see(self, number: int, result: Any) -> None:
        """A call made this result, and with it the node of this sequence number."""
        if not self._missing:
            return
        try:
            with no_functions(), no_operators(), no_autograd():
                if type(result) is Tensor:
                    self._look(number, result)
                else:
                    for tensor in tensors(result):
                        self._look(number, tensor)
        except Exception:
            pass

    def take(self) -> dict[int, str]:
        """Notes by the sequence number of the node; the next forward is looked at anew."""
        with no_functions(), no_operators(), no_autograd():
            for number, total in self._sums:
                if not math.isfinite(total.item()):
                    self._notes.setdefault(number, "the first result that is not finite")
                    break
        found, self._notes, self._missing, self._sums = self._notes, {}, {"NaN", "Inf"}, []
        return found

    def _look(self, number: int, tensor: Tensor) -> None:
        if not has_memory(tensor):
            return
        if not tensor.is_cpu:
            self._sums.append((number, tensor.sum(dtype=torch.float32)))
        elif not _sums_up(tensor):
            for name in sorted(self._missing):
                count = int((tensor.isnan() if name == "NaN" else tensor.isinf()).sum())
                if count:
                    self._missing.discard(name)
                    text = f"the first result with {name}: {count} of {tensor.numel()}"
                    before = self._notes.get(number)
                    self._notes[number] = f"{before}; {text}" if before else text


def _sums_up(tensor: Tensor) -> bool:
    return math.isfinite(abs(tensor.sum().item()))
