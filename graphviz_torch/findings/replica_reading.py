"""Which parameters and buffers ranks had alike and have not any more, by their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..graph import Graph, Replica


@dataclass(frozen=True)
class Parted:
    """Something that ranks should have alike, and do not when the last step ends."""

    name: str
    wrapper: str  # what promises that it is equal: "DistributedDataParallel"
    since: str  # "step 2"; "" where the ranks never had the same
    again: bool  # had they come apart before, and together


def parted(graphs: Sequence[Graph], kind: str) -> Iterator[Parted]:
    """The parameters, or buffers, that differ at the end; `graphs[i]` is rank i's.

    A group of ranks is judged if all of it is there and the same steps were looked at.
    """
    steps = {graph.step.checksum_steps for graph in graphs}
    if len(graphs) < 2 or len(steps) > 1:
        return
    [summed] = steps
    groups: dict[tuple[str, tuple[int, ...]], list[Replica]] = {}
    for rank, graph in enumerate(graphs):
        for each in graph.step.replicas:
            if each.kind == kind and rank in each.ranks:
                groups.setdefault((each.name, each.ranks), []).append(each)
    told: set[str] = set()
    for (name, ranks), copies in groups.items():
        if len(copies) < len(ranks) or name in told:
            continue
        rows = zip(*(each.checksums for each in copies), strict=True)
        differ = [None not in row and len(set(row)) > 1 for row in rows]
        if differ and differ[-1]:
            told.add(name)
            first = len(differ) - differ[::-1].index(False) if False in differ else 0
            since = _step(summed, first) if first else ""
            yield Parted(name, copies[0].wrapper, since, any(differ[:first]))


def _step(summed: Sequence[int], at: int) -> str:
    """The step at whose end these checksums were the first that differed."""
    before, step = summed[at - 1], summed[at]
    if at > 1 and step > before + 1:
        return f"a step after step {before}, at the latest step {step}"
    return f"step {step}"
