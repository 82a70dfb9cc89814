"""Where a drawing in columns goes on: numbered circles at both ends of an edge between columns."""

from __future__ import annotations

from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id


class Connectors:
    """The circles of one drawing.

    An edge to another column would run all the way up between the columns: so it ends at a circle
    with a number, and a circle with the same number starts it again above its target.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.parts = drawing.columns.parts
        self.numbers: dict[int, int] = {}  # by the key of the source
        if len(self.parts) < 2:
            return
        colors = palette(drawing.options["theme"])
        self.column = {key: i for i, part in enumerate(self.parts) for key in part}
        self._style = (
            f"shape=circle fixedsize=true width=0.25 height=0.25 margin=0 fontsize={markup.SMALL} "
            f'style=filled fillcolor="{colors["background"]}" color="{colors["edge"]}" '
            f'fontcolor="{colors["muted"]}"'
        )
        for source, target in drawing.ends:
            if self.column[source] != self.column[target]:
                self.numbers.setdefault(source, len(self.numbers) + 1)

    def between(self, source: int, target: int) -> tuple[str, str] | None:
        """The names of the two circles between a source and a target, where there are any."""
        if not self.numbers or self.column[source] == self.column[target]:
            return None
        return f"out_{dot_id(source)}", f"in_{dot_id(source)}_{dot_id(target)}"

    def nodes(self) -> dict[int, list[str]]:
        """The lines that make the circles, by the key beside which they stand."""
        lines: dict[int, list[str]] = {}
        for source, target in dict.fromkeys(self.drawing.ends) if self.numbers else ():
            names = self.between(source, target)
            for key, name in zip((source, target), names or (), strict=False):
                line = f'\t{name} [label="{self.numbers[source]}" {self._style}]'
                if line not in lines.setdefault(key, []):
                    lines[key].append(line)
        return lines

    def rows(self) -> list[str]:
        """What puts the columns beside each other: the tops of neighbours in one row.

        A column that starts in a frame starts beside that frame's top: what is before the frame
        stays above it.
        """
        rows: list[str] = []
        if len(self.parts) < 2:
            return rows
        ends = self.drawing.ends
        last = ""
        for i, part in enumerate(self.parts):
            first = part[0]
            fed = [s for s, t in ends if t == first and self.column[s] != i]
            names = self.between(fed[0], first) if fed else None
            top = names[1] if names else dot_id(first)
            if i:
                anchor = self.drawing.columns.anchors[i]
                left = last if anchor is None else dot_id(anchor)
                rows.append(f"\t{{rank=same {left} -> {top} [style=invis]}}")
            last = top
        return rows
