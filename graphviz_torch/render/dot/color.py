"""`color_by`: the fill of each node by a value or a name, and the scale that explains it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from ...graph import Graph, Node, short_dtype
from ...graph.units import bytes_text, seconds_text
from .. import labels
from ..drawing.contents import Contents
from ..drawing.visible import Visible
from ..style import (
    CATEGORIES,
    COLORS,
    FORMS,
    NONFINITE,
    ON_STRONG,
    SCALE,
    SCALE_TURNS,
    Theme,
    category,
    pick,
    role,
)
from . import markup

ColorBy = Literal["device", "dtype", "module", "gradient", "time", "saved"]

_TITLES = {
    "device": "device",
    "dtype": "dtype",
    "module": "module",
    "gradient": "gradient norm",
    "time": "time in backward",
    "saved": "bytes kept for backward",
}
_SUMMED = ("time", "saved")
# What a node without a value is. One that keeps nothing for backward is nothing to point at.
_MISSING = {"gradient": "no gradient", "time": "not timed"}
DASHED = ""  # in place of a fill: a dashed outline
_MOST_NAMES = 12  # in the legend


@dataclass(slots=True)
class Shading:
    """Fills by key, as DOT attributes, and what they mean."""

    fills: dict[int, str] = field(default_factory=dict)
    inks: dict[int, str] = field(default_factory=dict)  # colour of the text, where not the usual
    values: dict[int, str] = field(default_factory=dict)  # the value in words
    title: str = ""
    scale: list[tuple[str, str]] = field(default_factory=list)  # fill or DASHED, what it means


def shade(
    graph: Graph,
    drawn: Visible,
    inside: dict[int, Contents],
    color_by: ColorBy | None,
    theme: Theme,
) -> Shading:
    """The fills of what is drawn.

    Args:
        inside: what is in each closed group that is drawn.

    Raises:
        ValueError: for a `color_by` that is unknown, or that the graph has no values for.
    """
    if color_by is None:
        return Shading()
    if color_by not in get_args(ColorBy):
        known = ", ".join(map(repr, get_args(ColorBy)))
        raise ValueError(f"color_by={color_by!r} is unknown. Known are {known}.")
    members = {i: (i,) for i in drawn.nodes} | {~n: box.nodes for n, box in inside.items()}
    if color_by in _SUMMED:
        for i in drawn.inner.folded:
            host = drawn.inner.host(i)
            if host in members:
                members[host] += (i,)
    if color_by in _NAMES:
        return _by_name(graph, members, color_by, theme)
    return _by_value(graph, members, color_by, theme)


_NAMES: dict[str, Callable[[Node], str]] = {
    "device": lambda node: node.device,
    "dtype": lambda node: next((short_dtype(m.dtype) for m in node.outputs if m is not None), ""),
    "module": lambda node: ".".join(node.module.split(".")[:2]),
}


def _norm(node: Node) -> float | None:
    norms = [math.nan if g.nonfinite else g.norm for g in node.grad_outputs if g is not None]
    return max(norms, key=lambda norm: (math.isnan(norm), norm)) if norms else None


def _saved(node: Node) -> float | None:
    return node.saved_bytes if node.saved else None


# Value of a node, value in words, what to call it, how to get it.
_Value = tuple[Callable[[Node], "float | None"], Callable[[float], str], str, str]
VALUES: dict[str, _Value] = {
    "gradient": (_norm, labels.number, "grad norm up to", "Run a backward inside record()."),
    "time": (
        lambda node: node.seconds,
        seconds_text,
        "backward",
        "Run a backward inside record().",
    ),
    "saved": (_saved, lambda value: bytes_text(int(value)), "saved", "Run it inside record()."),
}


def _by_name(
    graph: Graph, members: dict[int, tuple[int, ...]], color_by: str, theme: Theme
) -> Shading:
    name_of = _NAMES[color_by]
    names = {
        key: {name_of(graph.nodes[i]) for i in ids if not graph.nodes[i].leaf or len(ids) == 1}
        for key, ids in members.items()
    }
    present = {name for found in names.values() for name in found if name}
    places = category(sorted(present))
    shading = Shading(title=_TITLES[color_by])
    for key, found in names.items():
        if len(found) == 1:
            color = pick(CATEGORIES[places[next(iter(found))]], theme)
            shading.fills[key] = f' fillcolor="{color}"'
    listed = sorted(present)
    shading.scale = [
        (pick(CATEGORIES[places[name]], theme), markup.escape(name))
        for name in listed[:_MOST_NAMES]
    ]
    if len(listed) > _MOST_NAMES:
        shading.title += f" ({_MOST_NAMES} of {len(listed)})"
    return shading


def _by_value(
    graph: Graph, members: dict[int, tuple[int, ...]], color_by: str, theme: Theme
) -> Shading:
    value_of, words, what, advice = VALUES[color_by]
    shading = Shading(title=_TITLES[color_by])
    values: dict[int, float] = {}
    for key, ids in members.items():
        found = [v for v in (value_of(graph.nodes[i]) for i in ids) if v is not None]
        if found:
            # Of a group: the largest gradient in it, but all of its time and bytes.
            values[key] = (
                sum(found) if color_by in _SUMMED else max(found, key=lambda v: (math.isnan(v), v))
            )
    if not values:
        raise ValueError(f"color_by={color_by!r}: the graph has no such values. {advice}")
    usual = [v for v in values.values() if math.isfinite(v) and v > 0]
    low, high = (min(usual), max(usual)) if usual else (0.0, 0.0)
    for key, value in values.items():
        if color_by != "gradient" or key < 0:  # a node says its gradient in any case
            shading.values[key] = f"{what} {words(value) if math.isfinite(value) else 'not finite'}"
        if not math.isfinite(value):
            fill = pick(NONFINITE, theme)
        else:
            step = _step(value, low, high)
            fill = pick(SCALE[step], theme)
            if step > 1:
                strong = step >= SCALE_TURNS
                shading.inks[key] = pick(ON_STRONG if strong else COLORS["ink"], theme)
        shading.fills[key] = f' fillcolor="{fill}"'
    marks = {0: low, len(SCALE) // 2: math.sqrt(low * high), len(SCALE) - 1: high}
    shading.scale = [
        (pick(pair, theme), words(marks[i]) if i in marks and usual else "")
        for i, pair in enumerate(SCALE)
    ]
    if any(not math.isfinite(v) for v in values.values()):
        shading.scale.append((pick(NONFINITE, theme), "NaN or Inf"))
    if color_by in _MISSING and len(values) < len(members):
        # The lightest step is hardly told from no fill at all.
        moved = {transfer.node for transfer in graph.transfers if transfer.node is not None}
        for key in members.keys() - values.keys():
            what = "group" if key < 0 else role(graph.nodes[key], (), moved)
            shading.fills[key] = f' style="{FORMS[what].style},dashed"'
        shading.scale.append((DASHED, _MISSING[color_by]))
    return shading


def _step(value: float, low: float, high: float) -> int:
    """The step of the scale for a value; the scale is logarithmic, zero is its lowest step."""
    if value <= low or high <= low:
        return 0
    share = math.log(value / low) / math.log(high / low)
    return min(int(share * len(SCALE)), len(SCALE) - 1)
