"""Draw the operation that raised the exception that ended a recording. It has no node."""

from __future__ import annotations

from collections.abc import Iterator

from .. import wording
from ..drawing.drawing import Drawing
from ..drawing.mark import SEVERITY_SIGNS
from ..style import palette
from . import markup
from .markup import dot_id


def failure_lines(drawing: Drawing) -> Iterator[str]:
    """Yield a dashed node for the operation that raised, below its inputs."""
    failure, sources = drawing.graph.failure, wording.failed_operands(drawing)
    if failure is None or not sources:
        return
    colors = palette(drawing.options["theme"])
    color = colors["error"]
    text = f"{markup.escape(failure.operation)}<BR/>"
    text += markup.small(f"{SEVERITY_SIGNS['error']} {markup.escape(failure.error)}", color)
    text += f"<BR/>{markup.small(markup.escape(failure.where), color)}" if failure.where else ""
    yield (
        f'\tfailed [label=<{text}> style="rounded,dashed" color="{color}" fontcolor="{color}" '
        f"penwidth=2]"
    )
    yield from (f'\t{dot_id(key)} -> failed [style=dashed color="{color}"]' for key in sources)
