"""`color_by`: the fill of each node by a value or a name, and the scale that explains it.

The names of `color_by` and what each means are documented in `to_dot`.
"""

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

ColorName = Literal["device", "dtype", "module", "trainable", "gradient", "time", "saved"]
# A name, or a function that gives a node's value, or None for a node without one.
ColorBy = ColorName | Callable[[Node], float | None]

_TITLES = {
    "device": "device",
    "dtype": "dtype",
    "module": "module",
    "trainable": "parameters",
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
    if not callable(color_by) and color_by not in get_args(ColorName):
        known = ", ".join(map(repr, get_args(ColorName)))
        raise ValueError(
            f"color_by={color_by!r} is unknown. Known are {known}, and a function of a node."
        )
    members = {i: (i,) for i in drawn.nodes} | {~n: box.nodes for n, box in inside.items()}
    if color_by not in (*_SUMMED, "module"):  # blocks alike are in different modules
        members.update({~n: (*box.nodes, *box.repeats) for n, box in inside.items()})
    if color_by in _SUMMED:
        for i in drawn.inner.folded:
            host = drawn.inner.host(i)
            if host in members:
                members[host] += (i,)
    if callable(color_by):
        return _by_value(graph, members, _named(color_by), _own(color_by), theme)
    if color_by == "trainable":
        return _by_name(graph, members, color_by, _trainable(graph), theme)
    if color_by in _NAMES:
        return _by_name(graph, members, color_by, _NAMES[color_by], theme)
    return _by_value(graph, members, color_by, VALUES[color_by], theme)


def in_values(color_by: ColorBy | None) -> bool:
    """Has each closed group a value of its own under this `color_by`?"""
    return callable(color_by) or color_by in VALUES


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


def _named(function: Callable[[Node], float | None]) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "value"


def _own(function: Callable[[Node], float | None]) -> _Value:
    """How to read and write the values of a user's function."""

    def value_of(node: Node) -> float | None:
        value = function(node)
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"color_by: {_named(function)} gave {value!r} for node {node.id} "
                f"({node.title}). Return a number, or None for a node without a value."
            ) from None

    return value_of, labels.number, _named(function), "The function gave None for every node."


def _trainable(graph: Graph) -> Callable[[Node], str]:
    """Whether a parameter, or all those of an operation's own module, require a gradient.

    A recording lists the frozen parameters. Of a trace those in the graph are known: trainable.
    """
    found: dict[str, set[bool]] = {}  # by module
    for parameter in graph.parameters:
        module = parameter.name.rpartition(".")[0]
        found.setdefault(module, set()).add(parameter.requires_grad)
    for node in graph.nodes:
        if node.leaf == "parameter":
            found.setdefault(node.module, set()).add(True)
    names = {(True,): "trainable", (False,): "frozen", (False, True): "partly frozen"}

    def name_of(node: Node) -> str:
        if node.leaf:
            return "trainable" if node.leaf == "parameter" else ""
        return names.get(tuple(sorted(found.get(node.module, ()))), "")

    return name_of


def _by_name(
    graph: Graph,
    members: dict[int, tuple[int, ...]],
    color_by: str,
    name_of: Callable[[Node], str],
    theme: Theme,
) -> Shading:
    names = {
        key: {name_of(graph.nodes[i]) for i in ids if not graph.nodes[i].leaf or len(ids) == 1}
        for key, ids in members.items()
    }
    if color_by == "trainable":  # a group is what those of its operations that have parameters are
        for found in names.values():
            if len(found) > 1:
                found.discard("")
            if len(found) > 1:
                found.clear()
                found.add("partly frozen")
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
    graph: Graph,
    members: dict[int, tuple[int, ...]],
    color_by: str,
    value: _Value,
    theme: Theme,
) -> Shading:
    value_of, words, what, advice = value
    own = value is not VALUES.get(color_by)  # a function may be called "gradient"
    shading = Shading(title=markup.escape(color_by) if own else _TITLES[color_by])
    summed = not own and color_by in _SUMMED
    values: dict[int, float] = {}
    for key, ids in members.items():
        found = [v for v in (value_of(graph.nodes[i]) for i in ids) if v is not None]
        if found:
            # Of a group: the largest gradient in it, but all of its time and bytes.
            values[key] = sum(found) if summed else max(found, key=lambda v: (math.isnan(v), v))
    if not values:
        raise ValueError(f"color_by={color_by!r}: the graph has no such values. {advice}")
    finite = [v for v in values.values() if math.isfinite(v)]
    logarithmic = not any(v < 0 for v in finite)
    usual = [v for v in finite if v > 0 or not logarithmic]
    low, high = (min(usual), max(usual)) if usual else (0.0, 0.0)
    for key, number in values.items():
        if own or color_by != "gradient" or key < 0:  # a node says its gradient in any case
            shading.values[key] = (
                f"{what} {words(number) if math.isfinite(number) else 'not finite'}"
            )
        if not math.isfinite(number):
            fill = pick(NONFINITE, theme)
        else:
            step = _step(number, low, high, logarithmic)
            fill = pick(SCALE[step], theme)
            if step > 1:
                strong = step >= SCALE_TURNS
                shading.inks[key] = pick(ON_STRONG if strong else COLORS["ink"], theme)
        shading.fills[key] = f' fillcolor="{fill}"'
    middle = math.sqrt(low * high) if logarithmic else (low + high) / 2
    marks = {0: low, len(SCALE) // 2: middle, len(SCALE) - 1: high}
    shading.scale = [
        (pick(pair, theme), words(marks[i]) if i in marks and usual else "")
        for i, pair in enumerate(SCALE)
    ]
    if any(not math.isfinite(v) for v in values.values()):
        shading.scale.append((pick(NONFINITE, theme), "NaN or Inf"))
    if (own or color_by in _MISSING) and len(values) < len(members):
        # The lightest step is hardly told from no fill at all.
        moved = {transfer.node for transfer in graph.transfers if transfer.node is not None}
        for key in members.keys() - values.keys():
            form = FORMS["group" if key < 0 else role(graph.nodes[key], (), moved)]
            shading.fills[key] = f' style="{form.style},dashed"'
        shading.scale.append((DASHED, "no value" if own else _MISSING[color_by]))
    return shading


def _step(value: float, low: float, high: float, logarithmic: bool) -> int:
    """The step of the scale for a value; of a logarithmic scale, zero is the lowest step."""
    if value <= low or high <= low:
        return 0
    if logarithmic:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    return min(int(share * len(SCALE)), len(SCALE) - 1)
