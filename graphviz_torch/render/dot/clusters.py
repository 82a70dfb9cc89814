"""Write DOT clusters. Each device has a cluster, which contains the clusters of open modules."""

from __future__ import annotations

from collections.abc import Collection

from .. import group_wording, labels, wording
from ..drawing.drawing import Drawing
from ..style import GROUNDS, category, palette, pick
from . import markup
from .markup import dot_id

# A connected part of the drawing on one device: (device, key of the part's first element).
_Region = tuple[str, int]
# Tree of clusters: group id or region -> the clusters and DOT lines inside; a DOT line -> None.
_Tree = dict[int | str | _Region, "_Tree | None"]


def cluster_lines(drawing: Drawing, copies: Collection[int], lines: dict[int, str]) -> list[str]:
    """Return the DOT lines of the nodes, nested in clusters.

    Args:
        drawing: the drawing.
        copies: ids of the nodes that copy between devices. They are outside of the devices'
            clusters.
        lines: key of an element -> DOT line of the element.
    """
    regions = _regions(drawing, copies)
    if drawing.groups is None and not regions:
        return list(lines.values())
    top: _Tree = {}
    for key in sorted(lines, key=drawing.place):
        path: list[int | _Region] = [regions[key]] if key in regions else []
        level = top
        for entry in (*path, *drawing.tree.paths[key]):
            inner = level.setdefault(entry, {})
            assert inner is not None
            level = inner
        level[lines[key]] = None
    devices = category([device for device, _ in regions.values()])
    return _write(drawing, top, "", devices, "\t")


def _regions(drawing: Drawing, copies: Collection[int]) -> dict[int, _Region]:
    """Return the region (see `_Region`) of each key; {} if everything is on one device."""
    nodes = drawing.graph.nodes
    device = {i: nodes[i].device for i in drawing.nodes if i not in copies and nodes[i].device}
    for number in drawing.boxes:
        devices = drawing.contents[number].devices
        if len(devices) == 1:
            device[~number] = devices[0]
    if len(set(device.values())) < 2:
        return {}
    near: dict[int, list[int]] = {key: [] for key in device}
    for source, target in drawing.ends:
        if device.get(source, "") == device.get(target):
            near[source].append(target)
            near[target].append(source)
    regions: dict[int, _Region] = {}
    for start in device:
        if start in regions:
            continue
        reached = [start]
        regions[start] = here = (device[start], start)
        for key in reached:
            fresh = [other for other in near[key] if other not in regions]
            regions.update(dict.fromkeys(fresh, here))
            reached += fresh
    return regions


def _write(
    drawing: Drawing, level: _Tree, name: str, devices: dict[str, int], tab: str
) -> list[str]:
    theme = drawing.options["theme"]
    colors = palette(theme)
    result: list[str] = []
    for entry, inner in level.items():
        if inner is None:
            result.append(tab[1:] + str(entry))
            continue
        if isinstance(entry, tuple):
            device, start = entry
            here = f"{name}_d{dot_id(start)}"
            title, border, small, sent = device, colors["group_line"], [], []
            fill = pick(GROUNDS[devices[device]], theme)
        else:
            here = f"{name}_{entry}"
            title, border = drawing.title_with_class(int(entry)), colors["cluster_line"]
            small = group_wording.repeat_totals(drawing, int(entry))
            sent = wording.collective_lines(drawing, ~int(entry))
            fill = colors["cluster"]
        wrapped = labels.wrap_name(title, drawing.line_width)
        lines = [f"<B>{markup.escape(line)}</B>" for line in wrapped.split("\n")]
        # The rim around a title's text hides edges behind it. SPACE makes a line of the title
        # higher, so that the rim covers the whole line.
        for text in small:
            color = colors["collective_line" if text in sent else "muted"]
            lines.append(markup.small(markup.escape(text), color) + markup.SPACE)
        head = "".join(f'{line}<BR ALIGN="LEFT"/>' for line in lines) if lines[1:] else lines[0]
        result += [
            f"{tab}subgraph cluster{here} {{",
            f"{tab}\tgraph [label=<{head}> labelloc=t labeljust=l"
            f' style="rounded,filled" fillcolor="{fill}" color="{border}"]',
            *_write(drawing, inner, here, devices, tab + "\t"),
            f"{tab}}}",
        ]
    return result
