"""Cuts inside compiled regions, and the use of their results outside.

If the region has a node, its cuts are drawn inside it, connected to the users of their results; if
only results of cuts were used, the region's node is upstream of a cut. If the region has no node,
such as an encoder whose result is detached, its cuts are ordinary cuts of the region's parameters
and inputs.
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
    """The trails of the cuts inside a region, which the region's results carry.

    Args:
        event: the region that ran.
    """

    def __init__(self, event: RegionRan) -> None:
        self.start, self.end = event.start, event.end
        self.by_cut = {cut: Trail((), ()) for cut in event.region.cuts if cut.results}

    def lead(self, event: RegionRan, tracker: Tracker) -> None:
        """Give the region's results their trails, including those of its inputs."""
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
    """Return the cuts inside a region, with the nodes outside that used tensors computed from
    them.

    Args:
        region: the operations inside.
        number: sequence number of the region's node.
        ran: the regions of this step.
        backward: its graph contains the nodes.
    """
    [*found] = (each.by_cut for each in ran if each.start <= number < each.end)
    trails = found[-1] if found else {}
    numbers = {cut: trail.after or () for cut, trail in trails.items()}
    return tuple(
        cut._replace(outside=tuple(dict.fromkeys(backward.node_ids(numbers.get(cut, ())))))
        for cut in region.cuts
    )


def inside_record(cut: RegionCut, event: RegionRan, program: Program) -> Origin | None:
    """Return the Origin of a cut inside a region; None if no operand requires a gradient.

    If the region has a node, that node is the operand, so that the graph contains it; if the node
    is gone, the operands are the region's inputs, as for any other cut.

    Args:
        cut: the cut inside.
        event: the region that ran.
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
    _ = program.stack.files[place[0]]  # registers the file, so that its lines get names
    return place_of(*place)
