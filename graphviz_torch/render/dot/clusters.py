"""The clusters of a DOT text: modules, and around them what lies on one device."""

from __future__ import annotations

from collections.abc import Collection

from ...graph import Graph
from ..drawing.contents import Contents
from ..drawing.visible import Visible, dot_id, place
from ..style import GROUNDS, Theme, category, palette, pick
from . import markup

_Region = tuple[str, int]  # a device, and the first key of a connected part on it
# By group or region; a line of text holds None.
_Tree = dict[int | str | _Region, "_Tree | None"]


def clustered(
    graph: Graph,
    drawn: Visible,
    inside: dict[int, Contents],
    transfers: Collection[int],
    lines: dict[int, str],
    theme: Theme,
) -> list[str]:
    """The lines of the nodes with the clusters around them.

    Args:
        inside: what is in each closed group.
        transfers: nodes that copy between devices: they stand between the clusters.
        lines: DOT by key.
    """
    regions = _regions(graph, drawn, inside, transfers)
    if drawn.groups is None and not regions:
        return list(lines.values())
    top: _Tree = {}
    for key in sorted(lines, key=lambda key: place(drawn, key)):
        path: list[int | _Region] = [regions[key]] if key in regions else []
        level = top
        for entry in (*path, *drawn.path(key)):
            inner = level.setdefault(entry, {})
            assert inner is not None
            level = inner
        level[lines[key]] = None
    devices = category([device for device, _ in regions.values()])
    return _write(graph, drawn, top, "", devices, theme, "\t")


def _regions(
    graph: Graph, drawn: Visible, inside: dict[int, Contents], transfers: Collection[int]
) -> dict[int, _Region]:
    """The region of each key; none where all is on one device."""
    distinct = {graph.nodes[i].outputs for i in drawn.nodes}
    if not inside and len({m.device for outputs in distinct for m in outputs if m}) < 2:
        return {}
    device = {
        i: graph.nodes[i].device
        for i in drawn.nodes
        if i not in transfers and graph.nodes[i].device
    }
    for number, figures in inside.items():
        if len(figures.devices) == 1:
            device[~number] = figures.devices[0]
    if len(set(device.values())) < 2:
        return {}
    near: dict[int, list[int]] = {key: [] for key in device}
    for source, target in drawn.ends():
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
    graph: Graph,
    drawn: Visible,
    level: _Tree,
    name: str,
    devices: dict[str, int],
    theme: Theme,
    tab: str,
) -> list[str]:
    colors = palette(theme)
    result: list[str] = []
    for entry, inner in level.items():
        if inner is None:
            result.append(tab[1:] + str(entry))
            continue
        if isinstance(entry, tuple):
            device, start = entry
            here = f"{name}_d{dot_id(start)}"
            title, line = device, colors["group_line"]
            fill = pick(GROUNDS[devices[device]], theme)
        else:
            here = f"{name}_{entry}"
            title, line = drawn.described(int(entry), graph), colors["cluster_line"]
            fill = colors["cluster"]
        result += [
            f"{tab}subgraph cluster{here} {{",
            f"{tab}\tgraph [label=<<B>{markup.escape(title)}</B>> labelloc=t labeljust=l"
            f' style="rounded,filled" fillcolor="{fill}" color="{line}"]',
            *_write(graph, drawn, inner, here, devices, theme, tab + "\t"),
            f"{tab}}}",
        ]
    return result
