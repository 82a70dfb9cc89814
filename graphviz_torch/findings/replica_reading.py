"""Detect parameters and buffers whose checksums differ between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph import Graph, Replica
from ..graph.immutable import immutable


@immutable(slots=False)
class DivergedReplica:
    """A parameter or buffer that differs between ranks when the last step ends."""

    name: str
    # Class that keeps the copies equal, such as "DistributedDataParallel"; "" if there is none.
    wrapper: str
    since: str  # "step 2"; "" if the ranks never had equal values
    # True if the ranks' values also differed in an earlier step, and were equal in between.
    diverged_before: bool


def find_diverged(graphs: Sequence[Graph], kind: str) -> Iterator[DivergedReplica]:
    """Yield the parameters or buffers that differ between ranks at the end of the recording.

    Copies on a group of ranks are compared if the graphs of all these ranks are given. If the
    graphs have checksums of different steps, nothing is compared.

    Args:
        graphs: one for each rank, rank 0 first.
        kind: "parameter" or "buffer".
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
    reported: set[str] = set()
    for (name, ranks), copies in groups.items():
        if len(copies) < len(ranks) or name in reported:
            continue
        rows = zip(*(each.checksums for each in copies), strict=True)
        differ = [None not in row and len(set(row)) > 1 for row in rows]
        if differ and differ[-1]:
            reported.add(name)
            first = len(differ) - differ[::-1].index(False) if False in differ else 0
            since = _step(summed, first) if first else ""
            yield DivergedReplica(name, copies[0].wrapper, since, any(differ[:first]))


def _step(summed: Sequence[int], at: int) -> str:
    """Return a phrase that names the step at whose end the checksums differed first.

    Args:
        summed: steps that have checksums.
        at: index in `summed` of the first step with different checksums.
    """
    before, step = summed[at - 1], summed[at]
    if at > 1 and step > before + 1:
        return f"a step after step {before}, at the latest step {step}"
    return f"step {step}"
