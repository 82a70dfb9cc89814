"""Estimate the sizes of boxes in points. Only Graphviz knows the exact widths of letters."""

from __future__ import annotations

from typing import Final

from .. import labels, wording
from .drawing import Drawing
from .stubs import Stub

Size = tuple[float, float]  # width and height, in points

_TITLE_HEIGHT: Final = 14.5  # points per line
_DETAIL_HEIGHT: Final = 11.5  # points per line of small text
_MARGIN: Final = 9.0  # sum of the points above and below the text of a box
_SIDES: Final = 22.0  # sum of the points left and right of the text
_BOLD, _PLAIN, _NARROW = 8.1, 7.2, 5.9  # points per letter: bold title, plain title, small text


class Sizes:
    """Estimated sizes of all boxes that a drawing may have."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._known: dict[int, Size] = {}
        rows = drawing.families.values() if drawing.fold else ()
        self._times = {alike[0] for row in rows for alike in row if len(alike) > 1}
        self._devices = 55.0 if drawing.shows_devices else 0.0

    def box(self, key: int) -> Size:
        """Return width and height of the box of a node or closed group, in points."""
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self._node(key) if key >= 0 else self._group(~key)
        return size

    def set_stub(self, key: int, stub: Stub) -> None:
        """Estimate the size of the box for data or for a call without a node, and store it.

        Args:
            key: key under which `box` returns the size.
            stub: the box.
        """
        small = max(map(len, stub.details), default=0)
        if stub.listed:
            wide = max(_BOLD * len(name) + _NARROW * len(shape) for name, shape in stub.listed)
            self._known[key] = wide, _TITLE_HEIGHT * len(stub.listed) + _MARGIN
            return
        lines = stub.title_lines
        wide = max(_BOLD * max(map(len, lines)), _NARROW * small)
        high = _TITLE_HEIGHT * len(lines) + _DETAIL_HEIGHT * len(stub.details) + _MARGIN
        self._known[key] = wide + (0.0 if stub.is_data else _SIDES), high

    def title(self, number: int) -> float:
        """Return the width of a frame's title, in points."""
        return self._width([self._group_title(number)])

    def _group_title(self, number: int) -> str:
        assert self._drawing.groups is not None
        part = self._drawing.groups.groups[number]
        return labels.with_class(part.name.partition("#")[0], part.module_class)

    def _width(self, names: list[str]) -> float:
        width = self._drawing.line_width
        lines = [line for name in names for line in labels.wrap_name(name, width).split("\n")]
        return _BOLD * max(map(len, lines), default=0) + _SIDES

    def _node(self, i: int) -> Size:
        drawing, node = self._drawing, self._drawing.graph.nodes[i]
        names = wording.node_names(drawing, node)
        said = wording.operation_text(drawing, node)
        small = [labels.tensors(drawing.outputs_of(i), device=False)]
        small += wording.small_values(drawing, node) + wording.gradients(drawing, node)
        lines = len(small) + len(wording.inner_leaves(drawing, node))
        width = max(
            self._width(names),
            _PLAIN * len(said) + _SIDES,
            _NARROW * max(map(len, small)) + _SIDES + self._devices,
        )
        height = _TITLE_HEIGHT * (len(names) + bool(said)) + _DETAIL_HEIGHT * lines + _MARGIN
        return width, height

    def _group(self, number: int) -> Size:
        drawing = self._drawing
        assert drawing.groups is not None
        title = self._group_title(number)
        lines = 1 if drawing.options["detail"] == "short" else 4
        if number in self._times:
            title += 8 * " "  # space for the number of identical groups
        height = (
            _TITLE_HEIGHT * len(labels.wrap_name(title, drawing.line_width).split("\n"))
            + _DETAIL_HEIGHT * lines
            + _MARGIN
        )
        return max(self._width([title]), 110.0), height
