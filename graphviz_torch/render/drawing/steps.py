"""Convert a graph into a `Drawing`, the same for all output formats.

The conversion is a sequence of drawing steps. Each step is a function that fills in some fields of
the drawing and returns the new drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...graph import Finding, Graph
from ..options import DrawingOptions, Mark, complete
from ..resolve import resolve_findings
from .connect import shorten_edges
from .contents import count_contents, place_collectives
from .drawing import NOTHING, Drawing
from .fused import fuse_groups
from .inline import fold_views, inline_parameters
from .level import MAX_GROUP_SIZE, Step, apply_steps, choose, fold_repeats, group_nodes
from .mark import failure_findings, fill_by_value, mark
from .open import open_groups, weigh

BEFORE: Final[tuple[Step, ...]] = (inline_parameters, fold_views)
# Steps that run before groups are opened. They are repeated for each amount of detail to try.
GROUPS: Final[tuple[Step, ...]] = (fold_repeats, weigh, fuse_groups)
LEVEL: Final[tuple[Step, ...]] = (open_groups, shorten_edges)
_MAX_NODES_UNFOLDED = 60  # views of larger graphs show identical blocks once
AFTER: Final[tuple[Step, ...]] = (count_contents, place_collectives, mark, fill_by_value)


def draw(graph: Graph, options: DrawingOptions) -> Drawing:
    """Return the drawing of a graph.

    Raises:
        TypeError: for an unknown option.
        ValueError: for an invalid value of an option, such as a `module` that the graph does not
            have.
    """
    return apply_steps(_with_level(graph, options), AFTER)


def draw_boxes(
    graph: Graph, findings: Iterable[Finding], marks: Mapping[int, Mark] | None, *, paged: bool
) -> Drawing:
    """Return a drawing with default options and without edges.

    The drawing's `fused`, the groups that are drawn as single operations, also contains groups
    that are not drawn, such as repeated blocks.

    Args:
        graph: the graph.
        findings: findings to mark, as in `DrawingOptions`.
        marks: node id -> "added", "removed" or "changed", for the graph of a diff.
        paged: True to open the groups that fit a page; False to close all groups.
    """
    told = [each for each in findings if each.severity != "info"]
    start = _start(graph, {"findings": told, "marks": marks})  # type: ignore[typeddict-unknown-key]
    drawing = apply_steps(start, BEFORE)
    if paged:
        drawing = choose(drawing, GROUPS, (open_groups,))
    else:
        many = len(graph.nodes) - len(drawing.inner.folded) > _MAX_NODES_UNFOLDED
        drawing = group_nodes(drawing.having(size=MAX_GROUP_SIZE, fold=many))
    return fuse_groups(drawing.having(fold=False)).having(fold=drawing.fold)


def _with_level(graph: Graph, options: DrawingOptions) -> Drawing:
    """Return the drawing after the steps that open groups and add edges."""
    return choose(apply_steps(_start(graph, options), BEFORE), GROUPS, LEVEL)


def _start(graph: Graph, options: DrawingOptions) -> Drawing:
    """Return the drawing before the first step, with checked options and resolved findings."""
    checked = complete(options)
    if checked["color_by"] is None and {node.influence for node in graph.nodes} - {None}:
        checked["color_by"] = "influence"
    findings = resolve_findings(graph, checked["findings"])
    findings = (*failure_findings(graph, findings), *findings)
    return NOTHING.having(graph=graph, options=checked, findings=findings)
