"""Cuts inside compiled regions: what is done outside with results that were computed from theirs.

Of a region with a node of its own the cuts stand inside it, and what uses the results comes to
them; where nothing but those was used, the node is before a cut. Of a region without a node, an
encoder whose result is detached, nothing stands in the graph: its cuts are as any others, of the
parameters and tensors that the region was given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from ...internals.frames import CodePosition
from ...tracing.regions import Region, RegionCut
from ..backward import Backward
from ..listener import RegionRan
from ..program import Program
from ..program.source_lines import place_of
from ..program.tracking import Tracker, Trail
from .record import CutRecord, Origin, leaf_or_maker


class InsideTrails:
    """The trails of the cuts inside a region that has run, which its results have.

    Args:
        event: what ran.
    """

    def __init__(self, event: RegionRan) -> None:
        self.start, self.end = event.start, event.end
        self.by_cut = {cut: Trail((), ()) for cut in event.region.cuts if cut.results}

    def lead(self, event: RegionRan, tracker: Tracker) -> None:
        """Give its results their trails, with those of what they were computed from."""
        region = event.region
        for i, (one, inputs) in enumerate(zip(event.results, region.from_inputs, strict=True)):
            if isinstance(one, Tensor) and not one.requires_grad:
                behind = {trail: None for cut, trail in self.by_cut.items() if i in cut.results}
                behind |= tracker.trails(event.given[j] for j in inputs)
                if behind:
                    tracker.lead(one, Trail((), tuple(behind)))


def used_outside(
    region: Region, number: int, ran: Iterable[InsideTrails], backward: Backward
) -> tuple[RegionCut, ...]:
    """The cuts inside a region, with the nodes outside that used what was computed from theirs.

    Args:
        region: what is inside.
        number: of the region's own node.
        ran: the regions of this step.
        backward: whose graph has the nodes.
    """
    [*found] = (each.by_cut for each in ran if each.start <= number < each.end)
    trails = found[-1] if found else {}
    numbers = {cut: trail.after or () for cut, trail in trails.items()}
    return tuple(
        cut._replace(outside=tuple(dict.fromkeys(backward.made(numbers.get(cut, ())))))
        for cut in region.cuts
    )


def inside_record(cut: RegionCut, event: RegionRan, program: Program) -> Origin | None:
    """What a cut inside a region cut off; None where that needs no gradient.

    Of a region with a node of its own that is this node, so that it is in the graph, with the cut
    in it; where the node is gone, as of any other.

    Args:
        cut: inside.
        event: the region has run.
        program: names lines and modules.
    """
    own = [one for one in event.results if isinstance(one, Tensor) and one.requires_grad]
    given = [event.given[i] for i in cut.inputs if event.given[i].requires_grad]
    if not given:
        return None
    operands = [*own[:1], *given]
    origin = Origin([*map(leaf_or_maker, operands)])
    module = program.module
    if cut.origin.modules:
        module = program.table.path_inside(*cut.origin.modules[-1], module)
    origin.cut = CutRecord(
        cut.how,
        cut.tensor,
        [""] * len(operands),
        _place(cut, program),
        module,
        bool(cut.origin.modules) or program.in_forward,
        weakref.ref(origin),
        named=cut.input is not None,
        in_region=bool(own),
    )
    return origin


def _place(cut: RegionCut, program: Program) -> CodePosition | None:
    place = cut.origin.place
    if place is None:
        return None
    _ = program.stack.files[place[0]]  # it is one of the files that lines are told of
    return place_of(*place)
