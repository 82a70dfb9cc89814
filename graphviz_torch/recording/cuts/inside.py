"""Record the cuts inside compiled regions, and the use of their results outside.

A region with an autograd node is shown with its cuts inside, which are connected to the nodes that
use the cuts' results. If the program uses no other results of the region, its node is shown
upstream of a cut. A region without a node is not shown: an encoder whose result is detached is an
example. Its cuts are then shown as ordinary cuts of the region's parameters and inputs.
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
from .record import CutOperands, CutRecord, leaf_or_maker


class InsideTrails:
    """The `Trail`s that lead from a compiled region's results to the cuts inside the region.

    A cut is a call that passes no gradient, such as `detach`.

    Args:
        event: the region that ran.
    """

    def __init__(self, event: RegionRan) -> None:
        self.start, self.end = event.start, event.end
        self.by_cut = {cut: Trail((), ()) for cut in event.region.cuts if cut.results}

    def set_trails(self, event: RegionRan, tracker: Tracker) -> None:
        """Assign a `Trail` to each result that depends on an inner cut or on a detached input.

        Args:
            event: the compiled region that ran, with its inputs and results.
            tracker: stores the trail of each detached tensor.
        """
        region = event.region
        for i, (one, inputs) in enumerate(zip(event.results, region.from_inputs, strict=True)):
            if isinstance(one, Tensor) and not one.requires_grad:
                behind = {trail: None for cut, trail in self.by_cut.items() if i in cut.results}
                behind |= tracker.trails(event.given[j] for j in inputs)
                if behind:
                    tracker.set_trail(one, Trail((), tuple(behind)))


def used_outside(
    region: Region, number: int, ran: Iterable[InsideTrails], backward: Backward
) -> tuple[RegionCut, ...]:
    """Return a compiled region's cuts, with the nodes outside the region that used the results.

    Args:
        region: the operations of the region.
        number: sequence number of the region's node.
        ran: the regions that ran in this step.
        backward: the backward whose graph contains the region and the nodes outside.
    """
    [*found] = (each.by_cut for each in ran if each.start <= number < each.end)
    trails = found[-1] if found else {}
    numbers = {cut: trail.after or () for cut, trail in trails.items()}
    return tuple(
        cut._replace(outside=tuple(dict.fromkeys(backward.node_ids(numbers.get(cut, ())))))
        for cut in region.cuts
    )


def inside_record(cut: RegionCut, event: RegionRan, program: Program) -> CutOperands | None:
    """Return the `CutOperands` of a cut in a region; None if no input requires a gradient.

    The region's node, if there is one, counts as the operand of the cut, so that the region is
    shown in the graph. The region's inputs are stored as well: they are used if the node was freed.

    Args:
        cut: the cut inside the region.
        event: the region that ran.
        program: the recorded program, which knows lines and modules.
    """
    own = [one for one in event.results if isinstance(one, Tensor) and one.requires_grad]
    given = [event.given[i] for i in cut.inputs if event.given[i].requires_grad]
    if not given:
        return None
    operands = [*own[:1], *given]
    origin = CutOperands([*map(leaf_or_maker, operands)])
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
    _ = program.stack.files[place[0]]  # registers the file, so that its lines can be shown
    return place_of(*place)
