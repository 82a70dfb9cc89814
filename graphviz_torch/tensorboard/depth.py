"""Draw the gradient norm of each layer as a bar, on a logarithmic scale, in order of depth."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..render.dot.layout import escape, layout
from ..render.style import palette

_MAX_LAYERS = 120  # with more layers, only every n-th layer is shown
_WIDTH = 320.0  # width of the longest bar in points


def depth_dot(norms: Mapping[str, float], title: str) -> str:
    """Return the chart as DOT text, with one row for each layer.

    Args:
        norms: the gradient norm of each layer, first layer first.
        title: title of the chart.

    >>> "1e-05 to 0.1" in depth_dot({"first": 2e-5, "last": 0.05}, "step 3")
    True
    """
    colors = palette("light")
    sizes = [norm for norm in norms.values() if 0 < norm < math.inf]
    low = math.floor(math.log10(min(sizes))) if sizes else 0
    high = max(math.ceil(math.log10(max(sizes))), low + 1) if sizes else 1
    said = f"{title} · bars from {10.0**low:g} to {10.0**high:g}, logarithmic"
    every = math.ceil(len(norms) / _MAX_LAYERS)
    if every > 1:
        said += f" · one of {every} layers, of {len(norms)}"
    rows = [f'<TR><TD COLSPAN="3" ALIGN="LEFT"><B>{escape(said)}</B></TD></TR>']
    for layer, norm in list(norms.items())[::every]:
        good = math.isfinite(norm)
        bar = ""
        if good and norm > 0:
            width = 2 + _WIDTH * (math.log10(norm) - low) / (high - low)
            size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="10"'
            cells = f'<TD {size} BGCOLOR="{colors["input_line"]}"></TD>'
            # An empty cell after the bar fills the width, because Graphviz centers a narrow table.
            rest = f'FIXEDSIZE="TRUE" WIDTH="{2 + _WIDTH - width + 1:.0f}" HEIGHT="10"'
            cells += f"<TD {rest}></TD>"
            bar = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0"><TR>{cells}</TR></TABLE>'
        color = colors["muted" if good and norm else "error"]
        rows.append(
            f'<TR><TD ALIGN="RIGHT">{escape(layer)}</TD><TD ALIGN="LEFT" WIDTH="{_WIDTH:.0f}">{bar}'
            f'</TD><TD ALIGN="LEFT"><FONT COLOR="{color}">{norm:.3g}</FONT></TD></TR>'
        )
    table = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1">{"".join(rows)}</TABLE>'
    look = f'shape=plain fontname="DejaVu Sans" fontsize=10 fontcolor="{colors["ink"]}"'
    head = f'graph [pad=0.15 bgcolor="{colors["background"]}"]'
    return f"digraph {{\n\t{head}\n\tlayers [{look} label=<{table}>]\n}}\n"


def depth_png(norms: Mapping[str, float], title: str) -> bytes:
    """Return the chart as PNG.

    Raises:
        LayoutError: if Graphviz is missing or fails.
    """
    return layout(depth_dot(norms, title), "png")
