"""Where a drawing in columns goes on: arrows, numbered circles, and rows below each other."""

from __future__ import annotations

from itertools import pairwise

from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id


class Connectors:
    """What stands between the columns of one drawing.

    Where one tensor alone goes on in another column, an arrow leads all the way up to it: to a
    point above what reads it. Several would run up between the columns side by side: so each ends
    at a circle with a number, and a circle with the same number starts it again above its target.
    The numbers follow the columns, and each column downwards.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.parts = drawing.columns.parts
        self.numbers: dict[int, int] = {}  # of the circles, by the key of the source
        self._point: dict[tuple[int, int], int] = {}  # source and column -> the key below a point
        if len(self.parts) < 2:
            return
        colors = palette(drawing.options["theme"])
        self.column = {key: i for i, part in enumerate(self.parts) for key in part}
        self._circle = (
            f"shape=circle fixedsize=true width=0.25 height=0.25 margin=0 fontsize={markup.SMALL} "
            f'style=filled fillcolor="{colors["background"]}" color="{colors["edge"]}" '
            f'fontcolor="{colors["muted"]}"'
        )
        self._dot = f'label="" shape=point width=0.02 height=0.02 color="{colors["edge"]}"'
        far = [(s, t) for s, t in drawing.ends if self.column[s] != self.column[t]]
        sources: dict[tuple[int, int], set[int]] = {}  # by the columns at both ends
        for source, target in far:
            sources.setdefault((self.column[source], self.column[target]), set()).add(source)
        depth = drawing.tree.paths
        numbered = set()
        for source, target in far:
            column = self.column[target]
            if len(sources[self.column[source], column]) > 1:
                numbered.add(source)
                continue
            known = self._point.setdefault((source, column), target)
            if len(depth[target]) < len(depth[known]):  # outside the frames of the others
                self._point[source, column] = target
        in_order = [key for part in self.parts for key in part if key in numbered]
        self.numbers = {key: number for number, key in enumerate(in_order, 1)}

    def between(self, source: int, target: int) -> tuple[str, str] | None:
        """What an edge to another column leads to, and what goes on to the target; else None.

        Two circles, or twice the point that an arrow leads to.
        """
        if len(self.parts) < 2 or self.column[source] == self.column[target]:
            return None
        column = self.column[target]
        if (source, column) in self._point:
            return (f"turn_{dot_id(source)}_{column}",) * 2
        return f"out_{dot_id(source)}", f"in_{dot_id(source)}_{dot_id(target)}"

    def nodes(self) -> dict[int, list[str]]:
        """The lines that make circles and points, by the key beside which they stand."""
        lines: dict[int, list[str]] = {}
        for source, target in dict.fromkeys(self.drawing.ends) if len(self.parts) > 1 else ():
            names = self.between(source, target)
            if names is None:
                continue
            end, start = names
            if end == start:
                below = self._point[source, self.column[target]]
                made = [(below, f"\t{start} [{self._dot}]")]
            else:
                sign = f'[label="{self.numbers[source]}" {self._circle}]'
                made = [(source, f"\t{end} {sign}"), (target, f"\t{start} {sign}")]
            for key, line in made:
                if line not in lines.setdefault(key, []):
                    lines[key].append(line)
        return lines

    def rows(self) -> list[str]:
        """What puts the columns beside each other, and each row below the one before.

        The tops of a row's columns stand in one line. A column that starts in a frame starts beside
        that frame's top: what is before the frame stays above it.
        """
        lines: list[str] = []
        ends, columns = self.drawing.ends, self.drawing.columns
        last = ""
        for i, part in enumerate(self.parts if len(self.parts) > 1 else ()):
            first = part[0]
            fed = [s for s, t in ends if t == first and self.column[s] != i]
            names = self.between(fed[0], first) if fed else None
            top = names[1] if names else dot_id(first)
            if i not in columns.heads:
                beside = columns.beside[i]
                left = last if beside is None else dot_id(beside)
                lines.append(f"\t{{rank=same {left} -> {top} [style=invis]}}")
            last = top
        return lines + self._below()

    def _below(self) -> list[str]:
        """What puts each row so many ranks below the one before, with its tops in one line.

        Only the first pieces of the rows are joined, by an edge that is not seen. So Graphviz lays
        out each other piece by itself, and leaves them in their order.
        """
        columns = self.drawing.columns
        rows = [*pairwise([*columns.rows, len(self.parts)])]
        if len(rows) < 2:
            return []
        tops = [
            [dot_id(self.parts[at][0]) for at in columns.heads if begin <= at < end]
            for begin, end in rows
        ]
        lines = [f"\t{{rank=same {' '.join(names)}}}" for names in tops]
        order = [*zip(tops, columns.ends, strict=True)]
        if self.drawing.options["direction"] == "BT":
            order.reverse()
        for (_, (key, ranks)), ((first, *_), _) in pairwise(order):
            circle = key in self.numbers  # it is below the key
            end = f"out_{dot_id(key)}" if circle else dot_id(key)
            lines.append(f"\t{end} -> {first} [style=invis minlen={ranks - circle}]")
        return lines
