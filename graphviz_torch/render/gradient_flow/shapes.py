"""Draw the elements of a flow diagram as SVG: nodes, cuts, parameters, scale, legend and texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from ...graph.units import number_text
from ..chart import svg_text
from ..style import COLORS, SCALE
from .diagram import FlowCut, FlowNode, ParameterFlow, State
from .from_graph import MIN_LEARNING_NORM

GRADIENT_COLOR: Final = SCALE[2][0]
_CUT_COLOR: Final = "transfer_line"
_STATES: Final[dict[State, tuple[str, str]]] = {  # state -> (name of the color, meaning)
    "learns": ("output_line", "learns"),
    "learns_nothing": ("transfer_line", "learns nothing"),
    "frozen": ("operation_line", "frozen"),
}
_MIN_WIDTH, MAX_WIDTH = 2.0, 46.0  # minimum and maximum width of a link, in pixels
LEFT_MARGIN = 30  # pixels
_MIN_DECADES = 3.0  # minimum length of the scale, in powers of ten
_MAX_DECADES = 9.0
_MIN_COUNT_WIDTH = 50  # pixels
_MAX_NAMED = 3  # if a node has more parameters, they are counted instead of named


class Scale:
    """A logarithmic scale, which maps gradient norms to widths of links."""

    def __init__(self, norms: Sequence[float]) -> None:
        known = [math.log10(norm) for norm in norms if 0 < norm < math.inf]
        self.high: float = max(known, default=0.0)
        low = max(min(known, default=-_MIN_DECADES), self.high - _MAX_DECADES)
        self.low: float = min(low, self.high - _MIN_DECADES)

    def __call__(self, norm: float) -> float:
        """Return the width for a norm, in pixels; 0 if the norm is 0 or not finite."""
        if not 0 < norm < math.inf:
            return 0.0
        share = (math.log10(norm) - self.low) / (self.high - self.low)
        return _MIN_WIDTH + max(0.0, share) * (MAX_WIDTH - _MIN_WIDTH)


def cut_mark(x: float, y: float, cut: FlowCut, text: float, max_width: float) -> Iterator[str]:
    """Yield the bar of a cut, and its text.

    Args:
        x, y: middle of the bar.
        cut: the cut.
        text: x at which the text begins.
        max_width: maximum width of the text, in pixels.
    """
    color = COLORS[_CUT_COLOR][0]  # harmful and intended cuts have the same color
    yield (
        f'<path d="M{x - 15:.1f} {y - 4:.1f}h30v8h-30z" fill="{color}"/>'
        f'<path d="M{x - 15:.1f} {y + 7:.1f}h30" stroke="{color}" stroke-width="2" fill="none"/>'
    )
    yield leader(x + 18, text - 5, y)
    said = fit_text(" · ".join(cut.text), max_width, 12, bold=cut.harmful)
    yield (
        bold_text(text, y + 4, said, _CUT_COLOR, 12)
        if cut.harmful
        else svg_text(text, y + 4, said, _CUT_COLOR)
    )


def node_mark(x: float, y: float, width: float, place: FlowNode) -> str:
    """Return the shape of a node, which is hollow if one of its parameters learns nothing."""
    high = 12.0
    box = f'x="{x - width / 2:.1f}" y="{y - high / 2:.1f}" width="{width:.1f}" height="{high:.0f}"'
    paper = COLORS["background"][0]
    if place.output:
        line = COLORS["output_line"][0]
        return f'<rect {box} rx="6" fill="{COLORS["output"][0]}" stroke="{line}" stroke-width="2"/>'
    if not place.state:
        line = COLORS["operation_line"][0]
        return f'<rect {box} rx="6" fill="{paper}" stroke="{line}"/>'
    color = COLORS[_STATES[place.state][0]][0]
    if place.state == "learns_nothing":
        return f'<rect {box} rx="6" fill="{paper}" stroke="{color}" stroke-width="2.4"/>'
    corner = 6 if place.state == "learns" else 1
    return f'<rect {box} rx="{corner}" fill="{color}"/>'


def _dot(x: float, y: float, state: State) -> str:
    color = COLORS[_STATES[state][0]][0] if state else COLORS["muted"][0]
    if state == "learns_nothing":
        paper = COLORS["background"][0]
        circle = f'cx="{x:.1f}" cy="{y - 3.5:.1f}" r="3.2"'
        return f'<circle {circle} fill="{paper}" stroke="{color}" stroke-width="1.8"/>'
    if state == "frozen":
        return f'<rect x="{x - 3.5:.1f}" y="{y - 7:.1f}" width="7" height="7" fill="{color}"/>'
    return f'<circle cx="{x:.1f}" cy="{y - 3.5:.1f}" r="3.8" fill="{color}"/>'


def parameter_marks(
    x: float, y: float, some: Sequence[ParameterFlow], max_width: float
) -> Iterator[str]:
    """Yield the names of a node's parameters or, if there are many, their number by state.

    Args:
        x, y: position of the text.
        some: the parameters.
        max_width: maximum width of the text, in pixels.
    """
    names = [
        e.name if e.norm is None else f"{e.name} {number_text(e.norm)}" for e in some[:_MAX_NAMED]
    ]
    wide = [24 + text_width(said, 10) for said in names]
    if len(some) <= _MAX_NAMED and sum(wide) < max_width:
        for each, said, width in zip(some, names, wide, strict=True):
            yield _dot(x + 4, y, each.state)
            yield svg_text(x + 12, y, said, "muted", size=10)
            x += width
        return
    end = x + max_width
    for state, (_, meaning) in _STATES.items():
        here = [each for each in some if each.state == state]
        if not here:
            continue
        norms = sorted(each.norm for each in here if each.norm is not None)
        span = f", {number_text(norms[0])} to {number_text(norms[-1])}" if norms else ""
        said = f"{len(here):,} {meaning if state != 'learns' else 'parameters'}{span}"
        said = fit_text(said, max(end - x - 12, _MIN_COUNT_WIDTH), 10)
        yield _dot(x + 4, y, state)
        yield svg_text(x + 12, y, said, "muted", size=10)
        x += 24 + text_width(said, 10)


def legend(scale: Scale, slim: float, height: float) -> Iterator[str]:
    """Yield the scale of widths, and the meanings of colors and shapes.

    Args:
        scale: the scale of the links.
        slim: factor that makes the links of the panels narrower.
        height: height of the picture, in pixels.
    """
    y = height - 66
    yield svg_text(LEFT_MARGIN, y + 2, "Norm of the gradient", "muted", size=11)
    low, high = math.ceil(scale.low - 1e-9), math.floor(scale.high + 1e-9)
    step = max(1, math.ceil((high - low + 1) / 5))
    left, long = LEFT_MARGIN + 8, 212.0
    middle, thin, broad = y + MAX_WIDTH / 2, slim * _MIN_WIDTH / 2, slim * MAX_WIDTH / 2
    over = max(scale.high - scale.low, 1e-9)
    yield (
        f'<path d="M{left} {middle - thin:.1f}L{left + long:.0f} {middle - broad:.1f}'
        f'v{2 * broad:.1f}L{left} {middle + thin:.1f}z" fill="{GRADIENT_COLOR}"/>'
    )
    for power in range(low, high + 1, step):
        at = left + long * (power - scale.low) / over
        yield svg_text(at, y + MAX_WIDTH + 12, number_text(10.0**power), "muted", "middle", 10)
    x, y = left + long + 30, y + 8
    for state, (_, meaning) in _STATES.items():
        yield _dot(x, y + 16, state)
        yield svg_text(x + 9, y + 16, meaning, "muted", size=11)
        x += 34 + text_width(meaning, 11)
    dry = f"M{x:.0f} {y + 12.5:.1f}h26"
    line = COLORS["edge"][0]
    yield f'<path d="{dry}" stroke="{line}" stroke-dasharray="2 4" stroke-width="1.3" fill="none"/>'
    yield svg_text(x + 32, y + 16, "no gradient", "muted", size=11)
    x += 112
    yield f'<path d="M{x:.0f} {y + 8.5:.1f}h20v8h-20z" fill="{COLORS[_CUT_COLOR][0]}"/>'
    yield svg_text(x + 26, y + 16, "cut", "muted", size=11)
    said = f"A parameter learns if the norm of its gradient is at least {MIN_LEARNING_NORM:.0e}."
    yield svg_text(left + long + 26, y + 36, said, "muted", size=10)


def leader(x0: float, x1: float, y: float) -> str:
    """Return a thin horizontal line from a node's shape to the node's text."""
    line = COLORS["cluster_line"][0]
    return f'<path d="M{x0:.1f} {y:.1f}H{x1:.1f}" stroke="{line}" stroke-width="0.8" fill="none"/>'


def bold_text(x: float, y: float, text: str, color: str, size: int) -> str:
    """Return a text in bold."""
    return f'<g font-weight="bold">{svg_text(x, y, text, color, size=size)}</g>'


# DejaVu Sans: width, in hundredths of the font size -> letters of this width. Pictures without a
# layout engine need these widths, so that texts do not overlap. DejaVu Sans is the widest common
# font: Helvetica, Arial and Liberation Sans are narrower.
_PLAIN: Final = {
    27: "'",
    28: "ijl",
    29: "IJ",
    32: " ,.",
    34: "/:;\\|",
    35: "f",
    36: "-",
    39: "()[]t",
    40: "!",
    41: "r",
    46: '"',
    50: "*_`",
    52: "sz",
    53: "?",
    55: "c",
    56: "L",
    58: "Fk",
    59: "vxy",
    60: "P",
    61: "TYao",
    62: "e",
    63: "ESbdghnpqu",
    64: "$0123456789{}",
    66: "K",
    68: "AV",
    69: "BRXZ",
    70: "C",
    73: "U",
    75: "HN",
    77: "DG",
    78: "&",
    79: "OQ",
    82: "w",
    84: "#+<=>^~",
    86: "M",
    95: "%",
    97: "m",
    99: "W",
    100: "@",
}
_BOLD: Final = {
    31: "'",
    34: "ijl",
    35: " ",
    37: "/IJ\\|",
    38: ",.",
    40: ":;",
    42: "-",
    44: "f",
    46: "!()[]",
    48: "t",
    49: "r",
    50: "_`",
    52: '"*',
    58: "?z",
    59: "c",
    60: "s",
    64: "L",
    65: "vxy",
    67: "ak",
    68: "EFTe",
    69: "o",
    70: "$0123456789",
    71: "hnu{}",
    72: "SYbdgpq",
    73: "CPZ",
    76: "B",
    77: "AKRVX",
    81: "U",
    82: "G",
    83: "D",
    84: "#+<=>HN^~",
    85: "OQ",
    87: "&",
    92: "w",
    100: "%@M",
    104: "m",
    110: "W",
}
_OTHER: Final = 100  # width of letters that are not ASCII


@lru_cache(maxsize=2)
def _widths(bold: bool) -> dict[str, int]:
    rows = _BOLD if bold else _PLAIN
    return {letter: width for width, letters in rows.items() for letter in letters}


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in pixels.

    >>> text_width("wte", 12), text_width("wte", 12, bold=True)
    (21.96, 24.96)
    """
    known = _widths(bold)
    return round(sum(known.get(letter, _OTHER) for letter in text) * size / 100, 2)


def fit_text(
    text: str, max_width: float, size: float, *, bold: bool = False, end: bool = False
) -> str:
    """Return the text, shortened with "…" if it is wider than `max_width` pixels.

    Args:
        text: the text.
        max_width: maximum width in pixels.
        size: font size in pixels.
        bold: True if the text is drawn in bold.
        end: True to keep the end of the text, in which the paths of modules differ most.

    >>> fit_text("transformer", 50, 12), fit_text("transformer", 50, 12, end=True)
    ('transf…', '…ormer')
    """
    if text_width(text, size, bold=bold) <= max_width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        cut = f"…{text[-kept:]}" if end else f"{text[:kept]}…"
        if text_width(cut, size, bold=bold) <= max_width:
            return cut
    return "…"
