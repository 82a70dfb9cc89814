"""About how large a thing is drawn, in points: only Graphviz knows the letters' true widths."""

from __future__ import annotations

from typing import Final

from ...graph import Node
from .. import labels, wording
from ..cuts import cut_lines
from ..drawing.drawing import Drawing, Unit

Size = tuple[float, float]  # width and height

TITLE: Final = 14.0  # the height of a line
SMALL: Final = 9.0  # the same of small print
MARGIN: Final = 8.6  # above and below the text of a node
_LETTER = 5.2  # the width of a letter of small print
_WIDER = 1.25  # times as wide: a letter of an operation's name
_BOLD = 1.35  # the same of a name in bold
_GRADIENT = 12  # letters of a leaf's gradient inside an operation
_STUB = 75.0  # the width of each name beside a node whose edge is not drawn


def sizes(drawing: Drawing) -> dict[int, Size]:
    """The size of each key."""
    nodes, inside, alone = drawing.graph.nodes, drawing.inner.inside, drawing.alone
    usual: dict[tuple[str, int], float] = {}  # letters, by what every node of a kind says
    shapes: dict[int, int] = {}  # letters of a leaf's shapes; both by identity of the outputs
    found: dict[int, Size] = {}
    for i in drawing.nodes:
        node = nodes[i]
        kind = node.operation or node.name, id(node.outputs)
        letters = usual.get(kind)
        if letters is None:
            letters = max(len(kind[0]) * _WIDER, len(labels.tensors(node.outputs)), 8)
            usual[kind] = letters
        high = TITLE + SMALL + MARGIN
        if node.grad_outputs:
            high += SMALL * sum([stats is not None for stats in node.grad_outputs])
        names = [node.label] if node.label else []
        if i in alone:
            names.append(labels.classed(alone[i], node.module_class.rpartition("/")[2]))
        for name in names:
            lines = labels.wrapped(name).split("\n")
            high += TITLE * len(lines)
            letters = max(letters, _BOLD * max(map(len, lines)))
        for line in labels.details(node):
            high += SMALL
            letters = max(letters, len(line))
        for edge in inside.get(i, ()):
            high += SMALL
            leaf = nodes[drawing.inner.leaf(edge.source)]
            known = shapes.get(id(leaf.outputs))
            if known is None:
                known = shapes[id(leaf.outputs)] = _shapes(leaf)
            known += _GRADIENT if leaf.grad_outputs else 0
            letters = max(letters, len(labels.within(node, leaf.label)) + known)
        found[i] = letters * _LETTER + 2 * 10, high
    for number in drawing.boxes:
        unit = drawing.unit(~number)
        if unit is not None:
            found[~number] = _of_unit(drawing, number, unit)
            continue
        lines = labels.wrapped(drawing.described(number)).split("\n")
        letters = _BOLD * max(map(len, lines))
        high = TITLE * len(lines) + (3 + (~number in drawing.handed)) * SMALL + MARGIN
        found[~number] = max(letters, 22) * _LETTER + 20, high
    for named in (drawing.before, drawing.behind):
        for key, others in named.items():
            width, height = found[key]
            found[key] = width + _STUB * min(len(others), 4), height
    for cut in cut_lines(drawing, len(found))[0]:
        if cut.one_sided:
            width, height = found[cut.key]
            found[cut.key] = width + _LETTER * max(map(len, cut.text)) + 20, height
    return found


def _of_unit(drawing: Drawing, number: int, unit: Unit) -> Size:
    names, said = wording.unit(drawing, number, unit)
    titles = [line for name in names for line in labels.wrapped(name).split("\n")]
    titles += labels.in_lines(said[0])
    small = said[1:]
    for i in unit.nodes:
        node = drawing.graph.nodes[i]
        edges = drawing.inner.inside.get(i, ())
        small += [wording.written_inside(drawing, node, edge.source) for edge in edges]
    letters = max([_BOLD * len(title) for title in titles] + [len(line) for line in small])
    return letters * _LETTER + 2 * 10, TITLE * len(titles) + SMALL * len(small) + MARGIN


def _shapes(leaf: Node) -> int:
    return sum([len(labels.shape(meta)) + 1 for meta in leaf.outputs if meta is not None])
