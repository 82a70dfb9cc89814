"""Send the reports of all ranks to rank 0, and merge their graphs and findings.

Ranks communicate through torchrun's key-value store (`TORCHELASTIC_USE_AGENT_STORE`). The store
belongs to torchrun, so it exists before the script creates a process group and after the script has
destroyed the last one. Reports are text that is validated when it is read; nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from .. import Finding, Graph, diff
from ..findings.check import find
from ..graph import GradientStats, Parameter, RankPosition, TensorMeta, TrainingStep
from ..graph.collective import with_times
from ..graph.files.file import text_of, value_of
from ..graph.immutable import immutable
from ..graph.join import join_graphs
from ..graph.text import ranks_text

WAIT = 60.0  # seconds that rank 0 waits for the other ranks at the end of a run
_POLL_SECONDS = 0.05


@immutable(slots=False)
class RankReport:
    """The findings and the last recorded step of one rank.

    Args:
        rank: the rank.
        steps: number of recorded steps.
        findings: findings of all steps.
        step: the last recorded step; if none was recorded, a step with an empty graph.
    """

    rank: int
    steps: int
    findings: tuple[Finding, ...]
    step: TrainingStep = TrainingStep(0, (Graph(()),))

    @property
    def graph(self) -> Graph:
        """Return the graph of the last backward of the last step."""
        return self.step.graph

    def check(self) -> None:
        """Raise ValueError if a graph of the step is malformed."""
        for graph in self.step.backwards:
            graph.check()


class Ranks:
    """This rank's connection to the other ranks of a run.

    Args:
        rank: this rank.
        size: number of ranks.
        store: torchrun's key-value store.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size, self._store = rank, size, store

    @classmethod
    def from_environment(cls) -> Ranks | None:
        """Connect to the ranks that torchrun started; return None without torchrun."""
        environment = os.environ
        size = int(environment.get("WORLD_SIZE", "1"))
        if size < 2 or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        import torch.distributed as dist

        distributed: Any = dist  # type stubs lack the store classes
        address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        wait = timedelta(seconds=WAIT)
        store = distributed.TCPStore(*address, is_master=False, timeout=wait)
        return cls(int(environment["RANK"]), size, store)

    def report(self, report: RankReport) -> None:
        """Send this rank's report to rank 0. It replaces an earlier report of this rank."""
        self._store.set(self._key(self.rank), zlib.compress(text_of(report).encode(), 1))

    def finish(self) -> None:
        """Notify rank 0 that this rank sends no more reports."""
        self._store.set(f"{self._key(self.rank)}/end", b"1")

    def reports(self, *, seconds: float = 0.0) -> dict[int, RankReport]:
        """Return the last report of each other rank, by rank. Rank 0 calls this.

        Args:
            seconds: the longest time to wait until all ranks have called `finish`.
        """
        others = range(1, self.size)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._store.check(
            [f"{self._key(rank)}/end" for rank in others]
        ):
            time.sleep(_POLL_SECONDS)
        found = {}
        for rank in others:
            with suppress(ValueError, zlib.error):  # raised for a report of another package version
                if self._store.check([self._key(rank)]):
                    text = zlib.decompress(self._store.get(self._key(rank))).decode()
                    found[rank] = value_of(text, RankReport)
        return found

    def publish(self, position: RankPosition | None) -> None:
        """Write this rank's position to the store; None means that the rank makes progress."""
        text = "" if position is None else text_of(position)
        self._store.set(f"{self._key(self.rank)}/position", zlib.compress(text.encode(), 1))

    def positions(self) -> dict[int, RankPosition | None]:
        """Return the published position of each rank; None means that the rank makes progress."""
        found: dict[int, RankPosition | None] = {}
        for rank in range(self.size):
            key = f"{self._key(rank)}/position"
            with suppress(ValueError, zlib.error):
                if self._store.check([key]):
                    text = zlib.decompress(self._store.get(key)).decode()
                    found[rank] = value_of(text, RankPosition) if text else None
        return found

    def announcements(self, increment: int = 0) -> int:
        """Add `increment` to the number of messages printed by all ranks, and return the number."""
        return int(self._store.add(f"{self._key(0)}/announcements", increment))

    def _key(self, rank: int) -> str:
        # torchrun may restart a run in the same store. The restart count in a key makes the keys of
        # each restart different.
        names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
        run = [os.environ.get(name, "") for name in names]
        return "/".join(("graphviz_torch/run", *run, str(rank)))


def merge_steps(steps: Mapping[int, TrainingStep]) -> TrainingStep:
    """Merge the same step of several ranks: the graphs of each backward pass become one graph.

    If the ranks ran different numbers of backward passes, only the graphs of the last pass of each
    rank are merged.
    """
    first = next(iter(steps.values()))
    same = len({len(step.backwards) for step in steps.values()}) == 1
    positions = range(len(first.backwards)) if same else (-1,)
    graphs = [{rank: step.backwards[i] for rank, step in steps.items()} for i in positions]
    return TrainingStep(first.number, tuple(map(merge_graphs, graphs)))


def merge_graphs(graphs: Mapping[int, Graph]) -> Graph:
    """Merge the graphs of several ranks into one graph.

    Identical graphs become one subgraph, whose title names the ranks. Graphs are identical if they
    have the same nodes and edges and send messages to the same ranks; gradients and durations may
    differ. Shards of a parameter are merged.
    """
    kinds: list[tuple[Graph, list[int]]] = []
    for rank, graph in sorted(graphs.items()):
        for first, ranks in kinds:
            if _is_same_graph(first, graph):
                ranks.append(rank)
                break
        else:
            kinds.append((graph, [rank]))
    wholes = [_merge_identical([graphs[rank] for rank in ranks]) for _, ranks in kinds]
    if len(wholes) == 1:
        return wholes[0]
    return join_graphs(wholes, [ranks_text(ranks) for _, ranks in kinds])[0]


def _merge_identical(graphs: Sequence[Graph]) -> Graph:
    parameters = merge_parameters(graphs)
    rows = zip(*[graph.collectives for graph in graphs], strict=True)
    collectives = tuple(map(with_times, rows))
    return replace(graphs[0], parameters=parameters, collectives=collectives)


def merge_parameters(graphs: Sequence[Graph]) -> tuple[Parameter, ...]:
    """Merge the parameters of identical graphs: norms of shards become norms of whole parameters.

    If several ranks have the same shard, the values of the first of these ranks are used. If a
    shard is missing, or if the gradient is not reduced over the ranks yet, the values of the first
    rank are kept, and remain marked as values of a shard.
    """
    ranks = [{each.name: each for each in graph.parameters} for graph in graphs]
    return tuple(_merge_shards([rank[name] for rank in ranks if name in rank]) for name in ranks[0])


def _merge_shards(ranks: Sequence[Parameter]) -> Parameter:
    first = ranks[0]
    parts = {each.shard: each for each in reversed(ranks) if each.shard is not None}
    if first.shard_count == 1 or len(parts) < first.shard_count:
        return first
    norms = [each.norm for each in parts.values() if each.norm is not None]
    if first.extent == "local part" and len(norms) == len(parts):
        first = replace(first, norm=math.hypot(*norms), extent="")
    grads = [each.grad for each in parts.values() if each.grad is not None]
    if len(grads) == len(parts):
        grad = _merge_statistics(grads, first.tensor)
        first = replace(first, grad=grad, shard=0, shard_count=1)
    return first


def _merge_statistics(parts: Sequence[GradientStats], whole: TensorMeta) -> GradientStats:
    """Compute the statistics of a gradient from the statistics of the gradient's shards."""
    sizes = [0 if each.tensor is None else math.prod(each.tensor.shape) for each in parts]
    finite = [size - each.nonfinite for size, each in zip(sizes, parts, strict=True)]
    means = (each.mean * count for each, count in zip(parts, finite, strict=True))
    zeros = (each.zero_fraction * size for each, size in zip(parts, sizes, strict=True))
    return GradientStats(
        math.hypot(*[each.norm for each in parts]),
        max(each.max_abs for each in parts),
        sum(means) / max(1, sum(finite)),
        sum(zeros) / max(1, sum(sizes)),
        sum(each.nan for each in parts),
        sum(each.inf for each in parts),
        tensor=whole if parts[0].tensor is None else parts[0].tensor._replace(shape=whole.shape),
    )


def merge_findings(reports: Sequence[RankReport]) -> list[Finding]:
    """Merge the findings of all ranks, and add findings of rules that compare ranks.

    A finding of all ranks is listed once. The message of a finding of only some ranks names these
    ranks.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], Finding] = {}
    for report in reports:
        for finding in report.findings:
            key = finding.rule, finding.message
            first.setdefault(key, finding)
            ranks.setdefault(key, []).append(report.rank)
    found = [
        finding
        if len(ranks[key]) == len(reports)
        else replace(finding, message=f"{ranks_text(ranks[key]).capitalize()}: {finding.message}")
        for key, finding in first.items()
    ]
    if all(report.graph.nodes for report in reports):
        ordered = sorted(reports, key=lambda report: report.rank)
        across = find([report.graph for report in ordered])
        skipped = [each for each in across if each.rule == "skipped-step"]
        same = len({report.step.number for report in reports}) == 1
        # If a rank ended early or skipped a step, other differences between ranks are consequences.
        found += across if same and not skipped else skipped
    return found


def _is_same_graph(a: Graph, b: Graph) -> bool:
    if len(a.nodes) != len(b.nodes) or len(a.edges) != len(b.edges):
        return False
    return _peers(a) == _peers(b) and not diff(a, b, gradient_tolerance=float("inf"))


def _peers(graph: Graph) -> list[int | None]:
    """Return the peer rank of each point-to-point message."""
    return [each.peer for each in graph.collectives if each.kind in ("send", "recv")]
