"""The ranks of one run: what each reports, brought to rank 0, and said once.

Ranks meet at the key-value server at which torchrun's met (`TORCHELASTIC_USE_AGENT_STORE`): it is
the launcher's, so it is there before the first process group and after the last. What a rank
reports is text that is checked when it is read; nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from .. import Finding, Graph, diff
from ..findings import find
from ..graph import GradientStats, Parameter, RankPosition, TensorMeta, TrainingStep
from ..graph.collective import with_times
from ..graph.files.file import text_of, value_of
from ..graph.text import ranks_text
from ..graph.training.join import joined

WAIT = 60.0  # seconds that rank 0 waits for the others at the end of a run
_POLL = 0.05


@dataclass(frozen=True)
class RankReport:
    """What one rank recorded."""

    rank: int
    steps: int
    findings: tuple[Finding, ...]
    step: TrainingStep = TrainingStep(0, (Graph(()),))  # noqa: RUF009 - it is frozen

    @property
    def graph(self) -> Graph:
        """Of the last backward of its last step."""
        return self.step.graph

    def check(self) -> None:
        """Raises ValueError for graphs that could not be read again."""
        for graph in self.step.backwards:
            graph.check()


class Ranks:
    """This rank, and how it reaches the others.

    Args:
        rank, size: of all ranks.
        store: the key-value server.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size, self._store = rank, size, store

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """Those that torchrun has started; None where this process is alone, or not torchrun's."""
        environment = os.environ
        size = int(environment.get("WORLD_SIZE", "1"))
        if size < 2 or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        import torch.distributed as dist

        distributed: Any = dist  # type checkers do not find its stores
        address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        wait = timedelta(seconds=WAIT)
        store = distributed.TCPStore(*address, is_master=False, timeout=wait)
        return cls(int(environment["RANK"]), size, store)

    def report(self, report: RankReport) -> None:
        """Give rank 0 what this rank has recorded; a later report takes the place of this one."""
        self._store.set(self._key(self.rank), zlib.compress(text_of(report).encode(), 1))

    def finish(self) -> None:
        """Say that this rank reports no more."""
        self._store.set(f"{self._key(self.rank)}/end", b"1")

    def reports(self, *, seconds: float = 0.0) -> dict[int, RankReport]:
        """At rank 0, what the others have reported, by rank.

        Args:
            seconds: to wait for those that have not ended. One that dies never does.
        """
        others = range(1, self.size)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._store.check(
            [f"{self._key(rank)}/end" for rank in others]
        ):
            time.sleep(_POLL)
        found = {}
        for rank in others:
            with suppress(ValueError, zlib.error):  # it was written by another version
                if self._store.check([self._key(rank)]):
                    text = zlib.decompress(self._store.get(self._key(rank))).decode()
                    found[rank] = value_of(text, RankReport)
        return found

    def publish(self, position: RankPosition | None) -> None:
        """Tell the others where this rank is; None: it goes on."""
        text = "" if position is None else text_of(position)
        self._store.set(f"{self._key(self.rank)}/position", zlib.compress(text.encode(), 1))

    def positions(self) -> dict[int, RankPosition | None]:
        """Where each rank is that has said it; None: it goes on."""
        found: dict[int, RankPosition | None] = {}
        for rank in range(self.size):
            key = f"{self._key(rank)}/position"
            with suppress(ValueError, zlib.error):
                if self._store.check([key]):
                    text = zlib.decompress(self._store.get(key)).decode()
                    found[rank] = value_of(text, RankPosition) if text else None
        return found

    def announcements(self, more: int = 0) -> int:
        """How often a rank has said where ranks wait, with as many `more`."""
        return int(self._store.add(f"{self._key(0)}/announcements", more))

    def _key(self, rank: int) -> str:
        # A launcher that starts its processes again gives them a new number.
        names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
        run = [os.environ.get(name, "") for name in names]
        return "/".join(("graphviz_torch/run", *run, str(rank)))


def one_step(steps: Mapping[int, TrainingStep]) -> TrainingStep:
    """The same step of several ranks as one, backward by backward.

    Where ranks ran backward another number of times, the last one alone is known to be the same.
    """
    first = next(iter(steps.values()))
    same = len({len(step.backwards) for step in steps.values()}) == 1
    positions = range(len(first.backwards)) if same else (-1,)
    graphs = [{rank: step.backwards[i] for rank, step in steps.items()} for i in positions]
    return TrainingStep(first.number, tuple(map(one_graph, graphs)))


def one_graph(graphs: Mapping[int, Graph]) -> Graph:
    """The graphs of ranks as one: of those that are alike the first, each kind under its ranks.

    Alike are graphs with the same nodes and edges that send to the same ranks, whatever the values
    of their gradients and how long they took. The parameters that ranks divide are put together.
    """
    kinds: list[tuple[Graph, list[int]]] = []
    for rank, graph in sorted(graphs.items()):
        for first, ranks in kinds:
            if _alike(first, graph):
                ranks.append(rank)
                break
        else:
            kinds.append((graph, [rank]))
    wholes = [_one([graphs[rank] for rank in ranks]) for _, ranks in kinds]
    if len(wholes) == 1:
        return wholes[0]
    return joined(wholes, [ranks_text(ranks) for _, ranks in kinds])[0]


def _one(alike: Sequence[Graph]) -> Graph:
    parameters = whole_parameters(alike)
    rows = zip(*[graph.collectives for graph in alike], strict=True)
    collectives = tuple(map(with_times, rows))
    return replace(alike[0], parameters=parameters, collectives=collectives)


def whole_parameters(graphs: Sequence[Graph]) -> tuple[Parameter, ...]:
    """The parameters of ranks that did the same: what they divide is said of the whole.

    Of ranks that have the same part the first counts. Where a part is missing, or each rank has a
    summand of a gradient, the first rank's own numbers stay, which say that they are of a part.
    """
    ranks = [{each.name: each for each in graph.parameters} for graph in graphs]
    return tuple(_whole([rank[name] for rank in ranks if name in rank]) for name in ranks[0])


def _whole(ranks: Sequence[Parameter]) -> Parameter:
    first = ranks[0]
    parts = {each.shard: each for each in reversed(ranks) if each.shard is not None}
    if first.shard_count == 1 or len(parts) < first.shard_count:
        return first
    norms = [each.norm for each in parts.values() if each.norm is not None]
    if first.extent == "local part" and len(norms) == len(parts):
        first = replace(first, norm=math.hypot(*norms), extent="")
    grads = [each.grad for each in parts.values() if each.grad is not None]
    if len(grads) == len(parts):
        first = replace(first, grad=_together(grads, first.tensor), shard=0, shard_count=1)
    return first


def _together(parts: Sequence[GradientStats], whole: TensorMeta) -> GradientStats:
    """The statistics of a gradient, from those of its parts."""
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


def one_list(reports: Sequence[RankReport]) -> list[Finding]:
    """The findings of ranks as one list: what all have once, what some have with their names."""
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
        # Where one has ended before the others, or makes one step of two, no more can be said.
        found += across if same and not skipped else skipped
    return found


def _alike(a: Graph, b: Graph) -> bool:
    if len(a.nodes) != len(b.nodes) or len(a.edges) != len(b.edges):
        return False
    return _peers(a) == _peers(b) and not diff(a, b, gradient_tolerance=float("inf"))


def _peers(graph: Graph) -> list[int | None]:
    """To which ranks its messages go, and from which they come."""
    return [each.peer for each in graph.collectives if each.kind in ("send", "recv")]
