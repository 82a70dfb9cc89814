"""The gradient at every node of a backward run, in what order the nodes ran, and for how long.

`seconds` of a node on the CPU is the time from when it has its gradients until the engine has
handed the next node its own: the node's work, its hooks, and the sums of gradients that it takes
part in. On CUDA it is the time between two events on the node's stream, around it; a CPU node of
such a graph has None, for the engine's threads mix. Elsewhere None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .descriptions import Descriptions, Kind
from .graph import GradientStats, TensorMeta
from .hooks import Hooks
from .metadata import is_custom, tensor_meta


class Gradients:
    """A context with hooks on live nodes, for one backward run.

    Args:
        nodes: the nodes, in the order of `Graph.nodes`, and the outputs of each.
        cuda: is one of them on a CUDA device.
    """

    def __init__(
        self, nodes: Iterable[tuple[Any, tuple[TensorMeta | None, ...]]], cuda: bool
    ) -> None:
        self._nodes = list(nodes)
        self._cuda = cuda
        self._hooks = Hooks()
        # In the order of the run: the node, if it is timed on the CPU, when it was entered and left
        # to itself.
        self._stamps: list[tuple[int, bool, float, float]] = []
        self._events: dict[int, tuple[Any, Any]] = {}
        self._descriptions = Descriptions()

    def __enter__(self) -> Gradients:
        before, after = self._before, self._after
        kinds = {
            outputs: tuple(
                None if meta is None else self._descriptions.kind(meta) for meta in outputs
            )
            for outputs in {outputs for _, outputs in self._nodes}
        }
        self._hooks.put(
            (fn.register_prehook, partial(before, node, kinds[outputs], is_custom(type(fn))))
            for node, (fn, outputs) in enumerate(self._nodes)
        )
        if self._cuda:
            self._hooks.put(
                (fn.register_hook, partial(after, node)) for node, (fn, _) in enumerate(self._nodes)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stamps.append((-1, False, perf_counter(), 0.0))
        self._hooks.remove()
        self._descriptions.describe_all()
        self._nodes.clear()

    @property
    def order(self) -> list[int]:
        """The nodes that backward ran, in its order."""
        return [node for node, _, _, _ in self._stamps[:-1]]

    def add(self, node: int, output_nr: int, gradient: Tensor | None) -> None:
        """Describe a gradient that no hook was given."""
        if gradient is not None and all(stamp[0] != node for stamp in self._stamps):
            self._descriptions.see(
                (node, output_nr), gradient, self._descriptions.kind(tensor_meta(gradient))
            )

    def _before(
        self,
        node: int,
        kinds: tuple[Kind | None, ...],
        custom: bool,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        entered = perf_counter()
        timed = False
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                kind = kinds[output_nr] or self._descriptions.kind(tensor_meta(gradient))
                self._descriptions.see((node, output_nr), gradient, kind)
                timed = kind.cpu
                if kind.cuda and node not in self._events:
                    self._events[node] = (_event(), _event())
        if custom:  # its backward may change in place what waits
            self._descriptions.describe_all()
        if self._cuda and node in self._events:
            self._events[node][0].record()
        self._stamps.append((node, timed and not self._cuda, entered, perf_counter()))

    def _after(self, node: int, inputs: Any, outputs: Any) -> None:
        if node in self._events:
            self._events[node][1].record()

    def statistics(
        self, outputs: Sequence[Sequence[object]]
    ) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the outputs of each node.
        """
        rows: dict[int, list[GradientStats | None]] = {}
        found: dict[int, tuple[GradientStats | None, ...]] = {}
        for (node, output_nr), stats in self._descriptions.found().items():
            count = len(outputs[node])
            if count == 1:
                found[node] = (stats,)
            else:
                rows.setdefault(node, [None] * count)[output_nr] = stats
        return found | {node: tuple(row) for node, row in rows.items()}

    def seconds(self) -> dict[int, float]:
        """Duration of each node that was timed. Waits for the CUDA events."""
        found = {}
        for node, (start, end) in self._events.items():
            end.synchronize()
            found[node] = start.elapsed_time(end) / 1000
        for (node, timed, _, left), (_, _, entered, _) in zip(
            self._stamps, self._stamps[1:], strict=False
        ):
            if timed:
                found[node] = entered - left
        return found


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
