"""The lines of a DOT text for data that enters a model and needs no gradient: thin and grey."""

from __future__ import annotations

from .. import wording
from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id


def data_lines(drawing: Drawing) -> list[str]:
    """The stubs with their edges.

    A drawing in columns has none: Graphviz would move these. There the nodes say it themselves.
    """
    if len(drawing.columns.parts) > 1:
        return []
    colors = palette(drawing.options["theme"])
    lines = []
    line = f'color="{colors["cluster_line"]}" arrowsize=0.5'
    for key, texts in wording.entries(drawing).items():
        said = "<BR/>".join(map(markup.escape, (*texts, "no gradient")))
        label = markup.small(said, colors["muted"])
        name = f"data_{dot_id(key)}"
        lines.append(f'\t{name} [label=<{label}> shape=plain style=""]')
        lines.append(f"\t{name} -> {dot_id(key)} [{line}]")
    return lines
