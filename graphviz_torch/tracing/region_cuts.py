"""Remove unused cuts from compiled regions; the graph of the eager program has none either.

A cut is unused if nothing uses its result. Nodes whose results are used only by unused cuts are
removed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .regions import END, Region, RegionCut, RegionEvent


def without_unused_cuts(region: Region) -> Region:
    """Return a compiled region without unused cuts, and without nodes that only those need.

    A cut is a call that passes no gradient, such as `detach`. It is unused if nothing uses its
    result.
    """
    inputs: dict[int, list[int]] = {}
    for edge in region.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    alive = {i for i, node in enumerate(region.nodes) if node.runs}
    cuts = list[RegionCut]()
    for cut in region.cuts[::-1]:
        if cut.shown or cut.outside or not alive.isdisjoint(cut.after):
            cuts.append(cut)
            stack = [] if cut.before is None else [cut.before]
            while stack:
                if (node := stack.pop()) not in alive:
                    alive.add(node)
                    stack += inputs.get(node, ())
    if len(cuts) == len(region.cuts):
        return region
    places = {old: new for new, old in enumerate(sorted(alive))} | {END: END}
    users = [[j for j, u in enumerate(row) if u in places] for row in region.users]
    numbers = region.input_nrs
    moved = [tuple(places[node] for node in cut.after if node in places) for cut in cuts]
    return replace(
        region,
        nodes=tuple(node for i, node in enumerate(region.nodes) if i in alive),
        edges=tuple(
            edge._replace(source=places[edge.source], target=places[edge.target])
            for edge in region.edges
            if edge.source in places and edge.target in places
        ),
        users=tuple(
            tuple(places[row[j]] for j in kept) if kept or not row else (END,)
            for row, kept in zip(region.users, users, strict=True)
        ),
        ends=tuple(places[node] for node in region.ends),
        cuts=tuple(
            cut._replace(before=places.get(cut.before, None), after=after)  # type: ignore[arg-type]
            for cut, after in zip(cuts, moved, strict=True)
        )[::-1],
        events=tuple(_renumber_event(event, places) for event in region.events),
        input_nrs=numbers
        and tuple(
            tuple(row[j] for j in kept) if kept or not row else (0,)
            for row, kept in zip(numbers, users, strict=True)
        ),
    )


def _renumber_event(event: RegionEvent, places: Mapping[int, int]) -> RegionEvent:
    return event._replace(
        nodes=tuple(places[node] for node in event.nodes if node in places),
        operands=tuple((meta, None if n is None else places.get(n)) for meta, n in event.operands),
    )
