"""Notes below a picture: copies that no node shows, and parts that are not drawn."""

from __future__ import annotations

from ..graph import Graph, Transfer
from ..graph.terminal import is_shell, option
from ..graph.text import first_items, listing
from . import labels
from .drawing.drawing import Drawing
from .wording import MAX_NAMES, nodes_with_size_range

_MAX_NOTED_COPIES = 3  # maximum number of lines with copies in a picture's note
_MAX_PATH = 60  # maximum length of a module's path in a hint, in characters


def other_copies(graph: Graph) -> str:
    """Return a sentence about copies that no node and no box of data shows; "" if there are none.

    Copies in backward are left out.
    """
    shown = {number for each in graph.untracked for number in each.copies}
    lines: dict[tuple[str, str, str], list[Transfer]] = {}
    for each in graph.transfers:
        if each.node is None and each.phase == "forward" and each.data not in shown:
            lines.setdefault((each.where, each.source, each.target), []).append(each)
    parts = []
    for (where, _, _), copies in lines.items():
        names = dict.fromkeys(each.label for each in copies if each.label)
        of = listing(names, MAX_NAMES) if names else copies[0].operation
        place = f"({where})" if where else ""
        parts.append(" ".join(filter(None, (of, *labels.copies(copies), place))))
    text = "; ".join(first_items(parts, _MAX_NOTED_COPIES))
    return f"copied outside the graph: {text}" if parts else ""


def notes(drawing: Drawing, cuts: int = 0) -> list[str]:
    """Return sentences about everything that the drawing leaves out."""
    return [text for text in (other_copies(drawing.graph), omissions(drawing, cuts)) if text]


def _closed_boxes_text(drawing: Drawing) -> str:
    """Return a text with the number of closed groups and the option that opens the largest one."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    largest = min(drawing.closed_groups, key=lambda number: (-groups[number].size, number))
    path = _path_to_open(drawing, largest)
    shell = is_shell()
    one = (
        option("module", path) if 0 < len(path) <= _MAX_PATH else "--module" if shell else "module="
    )
    count = len(drawing.closed_groups)
    return f"{count} {'box is' if count == 1 else 'boxes are'} closed ({one} opens one)"


def _path_to_open(drawing: Drawing, number: int) -> str:
    """Return the path to pass as the option `module` to open a group.

    For a run (consecutive nodes), this is the path of the first group inside that is not a run.
    """
    assert drawing.groups is not None
    groups = drawing.groups.groups
    below = [groups[inner] for inner in drawing.groups.with_descendants(number)]
    return next((part.path for part in below if part.kind != "run"), groups[number].path)


def omissions(drawing: Drawing, cuts: int = 0) -> str:
    """Return a sentence about everything that the drawing leaves out; "" if it shows everything."""
    count = len(drawing.graph.nodes)
    if not count:
        return "this graph has no nodes"
    parts = []
    if drawing.closed_groups:
        parts.append(_closed_boxes_text(drawing))
    if drawing.tree.represented_groups:
        alike = "blocks that differ only in the size of one axis"
        alike = alike if nodes_with_size_range(drawing) else "identical blocks"
        parts.append(f"{alike} are drawn once ({option('detail', 'full')} draws each)")
    if cuts:
        parts.append(f"{cuts:,} {'cut is' if cuts == 1 else 'cuts are'} not drawn")
    return f"{count:,} nodes: {'; '.join(parts)}" if parts else ""
