"""Gradients inside compiled regions, computed by running each region's backward once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ...graph import GradientStats
from ...internals.compiled import backward_graph
from ...internals.compiler.region_backward import RegionBackwardWatch
from ...internals.tensors.metadata import tensor_meta
from ...tracing.region_gradients import GradientOutput, received_gradients
from ...tracing.regions import Region
from ..backward import Backward
from ..gradients.statistics import Descriptions
from ..listener import BackwardBegan, BackwardEnded, Listener
from ..program import Program

Inner = tuple[GradientStats | None, ...]

# By class of a region's node: which values of its backward graph the inner nodes receive. Cached,
# because a compiler may change the graph later.
_received: WeakKeyDictionary[Any, Mapping[str, list[GradientOutput]]] = WeakKeyDictionary()


class InnerGradients(Listener):
    """Listener that records the gradient at every node inside a compiled region, on request."""

    needs = ("inside_regions",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._watch: RegionBackwardWatch | None = None
        # By graph, then by the region's node.
        self._runs: dict[int, dict[int, _RegionGradients]] = {}

    def on_backward_start(self, event: BackwardBegan) -> None:
        live = event.live
        if live.ran.rows is None or not live.reading.regions:
            return
        fns = list(live.ids)
        runs = {i: _RegionGradients(region) for i, region in live.reading.regions.items()}
        for i, run in runs.items():
            run.find_values(type(fns[i]))
        self._runs[live.position] = runs
        self._watch = RegionBackwardWatch({fns[i]: run for i, run in runs.items()})
        self._watch.open()

    def on_backward_end(self, event: BackwardEnded) -> None:
        self.close()

    def on_step_end(self, event: None) -> None:
        self._runs = {}

    def add_to_regions(
        self, regions: Mapping[int, Region], backward: Backward
    ) -> Mapping[int, Region]:
        runs = self._runs.get(backward.position, {})
        return {
            i: runs[i].with_gradients(region) if i in runs else region
            for i, region in regions.items()
        }

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


class _RegionGradients:
    """The gradients inside one region during a backward."""

    def __init__(self, region: Region) -> None:
        self.values: Mapping[str, list[GradientOutput]] = {}
        self._region = region
        self._remark = ""
        self._descriptions = Descriptions()
        self._equal = False

    def find_values(self, kind: Any) -> None:
        """Find the values that the inner nodes receive."""
        graph = backward_graph(kind)
        if kind not in _received and graph is not None:
            _received[kind] = received_gradients(graph, self._region)
        self.values = _received.get(kind, {})

    def on_value(self, name: str, value: Tensor) -> None:
        [where, *_] = self.values[name]
        self._descriptions.see(where, value, self._descriptions.kind(tensor_meta(value)))

    def on_complete(self) -> None:
        self._descriptions.describe_all()

    def on_equal(self) -> None:
        self._equal = True

    def on_mismatch(self, why: str) -> None:
        self._remark = f"gradients inside are not known: {why}"

    def with_gradients(self, region: Region) -> Region:
        """Return the region with the gradients of its nodes."""
        if not self._equal:
            return replace(region, remark=self._remark)
        found = self._descriptions.collect()
        rows: dict[int, Inner] = {}
        for [first, *more] in self.values.values():
            stats = found.get(first)
            for node, output_nr in (first, *more) if stats is not None else ():
                row: list[GradientStats | None] = [None] * len(region.nodes[node].outputs)
                row[output_nr] = stats
                rows[node] = tuple(row)
        nodes = enumerate(region.nodes)
        return replace(
            region, nodes=tuple(n._replace(grad_outputs=rows.get(i, ())) for i, n in nodes)
        )
