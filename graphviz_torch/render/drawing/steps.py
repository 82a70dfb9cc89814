"""The steps from a graph to a drawing, in their order. Writers of formats begin where they end.

Each step is a function from drawing to drawing, in the file of its name.
"""

from __future__ import annotations

from typing import Final

from ...graph import Graph
from ..groups.whole import findings_of
from ..options import DrawingOptions, complete
from .connect import connect
from .contents import count_contents, place_collectives
from .drawing import NOTHING, Drawing
from .fold import fold_repeats
from .frames import frame
from .inline import inline_parameters
from .level import Step, choose, taken
from .mark import failed, mark
from .open import open_groups, weigh
from .shade import shade
from .shorten import shorten_edges
from .units import find_units
from .views import fold_views

BEFORE: Final[tuple[Step, ...]] = (inline_parameters, fold_views)
# For each way of grouping the nodes that is tried.
GROUPS: Final[tuple[Step, ...]] = (fold_repeats, weigh, find_units)
LEVEL: Final[tuple[Step, ...]] = (open_groups, connect, frame, shorten_edges)
AFTER: Final[tuple[Step, ...]] = (count_contents, place_collectives, mark, shade)


def draw(graph: Graph, options: DrawingOptions) -> Drawing:
    """What to draw of a graph, and what to say of it.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a value that an option does not take, or that the graph does not have.
    """
    checked = complete(options)
    if checked["color_by"] is None and {node.influence for node in graph.nodes} - {None}:
        checked["color_by"] = "influence"
    findings = findings_of(graph, checked["findings"])
    findings = (*failed(graph, findings), *findings)
    start = NOTHING.having(graph=graph, options=checked, findings=findings)
    return taken(choose(taken(start, BEFORE), GROUPS, LEVEL), AFTER)
