"""The lines of a DOT text for data that enters a model and needs no gradient: thin and grey."""

from __future__ import annotations

from .. import wording
from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id


def data_lines(drawing: Drawing) -> list[str]:
    """The stubs with their edges."""
    colors = palette(drawing.options["theme"])
    lines = []
    line = f'color="{colors["cluster_line"]}" arrowsize=0.5'
    for key, texts in wording.entries(drawing).items():
        said = "<BR/>".join(map(markup.escape, (*texts, "no gradient")))
        label = markup.small(said, colors["muted"])
        name = f"data_{dot_id(key)}"
        stub = f'{name} [label=<{label}> shape=plain style=""]'
        frames = drawing.tree.paths[key] if drawing.graph.segments else ()
        # Of several graphs each has its data in its frame, which Graphviz knows by its name.
        lines.append(f"\tsubgraph cluster_{frames[0]} {{{stub}}}" if frames else f"\t{stub}")
        lines.append(f"\t{name} -> {dot_id(key)} [{line}]")
    return lines
