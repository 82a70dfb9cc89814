"""The steps from a graph to a drawing, in order; writers of formats start from the result.

Each step is a function from drawing to drawing, in a file of its own.
"""

from __future__ import annotations

from typing import Final

from ...graph import Graph
from ..options import DrawingOptions, complete
from ..resolve import FindingsLike, resolve_findings
from .connect import connect
from .contents import count_contents, place_collectives
from .drawing import NOTHING, Drawing
from .fold import fold_repeats
from .frames import frame
from .fused import fuse_groups
from .inline import inline_parameters
from .level import Step, apply_steps, choose
from .mark import failure_findings, mark
from .open import open_groups, weigh
from .shade import fill_by_value
from .shorten import shorten_edges
from .tree import Open
from .views import fold_views

BEFORE: Final[tuple[Step, ...]] = (inline_parameters, fold_views)
# Once for each level that is tried.
GROUPS: Final[tuple[Step, ...]] = (fold_repeats, weigh, fuse_groups)
LEVEL: Final[tuple[Step, ...]] = (open_groups, connect, frame, shorten_edges)
AFTER: Final[tuple[Step, ...]] = (count_contents, place_collectives, mark, fill_by_value)


def draw(graph: Graph, options: DrawingOptions) -> Drawing:
    """Return the drawing of a graph: its elements, edges and texts.

    Raises:
        TypeError: for an unknown option.
        ValueError: for an invalid value of an option, or one that the graph does not have.
    """
    return apply_steps(_with_level(graph, options), AFTER)


def opened_paths(graph: Graph, findings: FindingsLike) -> frozenset[str] | None:
    """Return the paths of the groups that the default drawing opens; None without groups."""
    drawing = _with_level(graph, {"findings": findings})
    groups, tree = drawing.groups, drawing.tree
    numbers = [part.group for part, _, _ in tree.parts if isinstance(part, Open)]
    if groups is None:
        return None
    return frozenset([groups.groups[number].path for number in numbers if number is not None])


def _with_level(graph: Graph, options: DrawingOptions) -> Drawing:
    """Return the drawing after the steps that open groups and connect them by edges."""
    checked = complete(options)
    if checked["color_by"] is None and {node.influence for node in graph.nodes} - {None}:
        checked["color_by"] = "influence"
    findings = resolve_findings(graph, checked["findings"])
    findings = (*failure_findings(graph, findings), *findings)
    start = NOTHING.having(graph=graph, options=checked, findings=findings)
    return choose(apply_steps(start, BEFORE), GROUPS, LEVEL)
