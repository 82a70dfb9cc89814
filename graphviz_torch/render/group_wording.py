"""The texts of a closed group in a picture: its calls, results, parameters and totals."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Untracked
from ..graph.text import listing
from ..graph.units import bytes_text, seconds_text
from . import labels
from .drawing.drawing import Drawing
from .drawing.fused import fused_text
from .drawing.values import Contents, FusedNode
from .wording import (
    MAX_NAMES,
    collective_lines,
    frozen_line,
    gradients,
    operation_of_node,
    small_values,
    tensors,
)


def fused_node_lines(drawing: Drawing, number: int, unit: FusedNode) -> tuple[list[str], list[str]]:
    """Return (lines with the names of a fused node, lines of small text)."""
    assert drawing.groups is not None
    node = drawing.graph.nodes[unit.node]
    names = [node.label] if node.label not in ("", drawing.title(number)) else []
    part = drawing.groups.groups[number]
    if part.kind == "module":
        names.append(drawing.title_with_class(number))
    elif part.kind == "call":
        names.append(operation_of_node(drawing, node._replace(attributes=())))
    else:
        names.append(fused_text(drawing, unit))
    said = [tensors(drawing, node)]
    said += small_values(drawing, node) + gradients(drawing, node)
    said += [drawing.loop_state[~number]] if ~number in drawing.loop_state else []
    values = drawing.shading.values
    said += [values[~number]] if ~number in values else []
    said += frozen_line(drawing, part.path) if part.kind == "module" else []
    return names, said + collective_lines(drawing, ~number)


def group_details(drawing: Drawing, number: int) -> list[str]:
    """Return the lines of small text in the box of a closed group.

    These are the outputs of the group, the names of results inside, the collectives and, unless
    detail="short", totals over the nodes.
    """
    handed = [drawing.loop_state[~number]] if ~number in drawing.loop_state else []
    contents = drawing.contents[number]
    call = untracked_call(drawing, number)
    said = _group_output_line(drawing, number) if call is None else [labels.shapes(call.tensors)]
    if drawing.options["detail"] != "short":
        said += _totals_lines(contents, contents.devices)
    else:
        said += [", ".join(contents.devices[:3])] if drawing.shows_devices else []
        said += [drawing.shading.values[~number]] if ~number in drawing.shading.values else []
    said += _inner_names(drawing, contents)
    assert drawing.groups is not None
    group = drawing.groups.groups[number]
    said += frozen_line(drawing, group.path) if group.kind == "module" else []
    return said + handed + collective_lines(drawing, ~number)


def untracked_call(drawing: Drawing, number: int) -> Untracked | None:
    """Return the module call, without a node, that the box of a closed group shows.

    Such a group contains only parameters of the module. Returns None for other groups.
    """
    assert drawing.groups is not None
    group = drawing.groups.groups[number]
    if not (group.kind == "module" and group.has_only_leaves):
        return None
    rows = drawing.graph.untracked
    return next((row for row in rows if row.kind == "module" and row.label == group.path), None)


def _group_output_line(drawing: Drawing, number: int) -> list[str]:
    """Return a line about the tensors that leave a closed group, in a list; [] if none is known."""
    metas = drawing.group_outputs.get(~number, {})
    shapes = [labels.shape(meta) for meta in metas]
    return [listing(shapes, MAX_NAMES)] if shapes else []


def _inner_names(drawing: Drawing, contents: Contents) -> list[str]:
    """Return a list with a line of names of inputs and results in a closed group.

    The names of the graph's outputs come first.
    """
    outputs = {i for i, _ in drawing.graph.outputs}
    named = [node for node in contents.inside if node.label]
    shown = [node for node in named if node.leaf not in ("parameter", "buffer")]
    shown.sort(key=lambda node: node.id not in outputs)
    known = list(dict.fromkeys(node.label for node in shown))
    return [f"{listing(known, MAX_NAMES)} inside"] if known else []


def repeat_totals(drawing: Drawing, number: int) -> list[str]:
    """Return the lines of small text below the title of an open group.

    These are the group's collectives and, if it is drawn in place of several identical groups,
    totals over all of them.
    """
    said = collective_lines(drawing, ~number)
    if number not in drawing.contents or drawing.options["detail"] == "short":
        return said
    first, *others = _totals_lines(drawing.contents[number])
    return [line for line in (first, ", ".join(others), *said) if line]


def _totals_lines(contents: Contents, devices: Sequence[str] = ()) -> list[str]:
    says = [f"all {contents.times}: " if contents.times > 1 else ""]
    says[0] += _count_noun(len(contents.inside), "node")
    figures = contents.totals
    if figures.elements:
        says[0] += f", {_count_noun(figures.elements, 'parameter')}"
    says += [", ".join(devices[:3])]
    if figures.gradients is not None:
        low, high = map(labels.number, figures.gradients)
        says.append(f"grad norm {low}" + (f" to {high}" if high != low else ""))
    costs = [f"saved {bytes_text(figures.saved_bytes)}"] if figures.saved_bytes else []
    if figures.seconds is not None:
        costs.append(f"backward {seconds_text(figures.seconds)}")
    return [line for line in (*says, ", ".join(costs)) if line]


def _count_noun(number: int, noun: str) -> str:
    return f"{labels.count(number)} {noun}{'' if number == 1 else 's'}"
